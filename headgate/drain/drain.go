// Package drain implements the command "headgate drain": it moves the models of an endpoint to
// others, and returns when no request is left there.
package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/display"
	"github.com/headgate/headgate/internal/query"
)

const usage = `headgate drain takes an endpoint out of use without losing a request. It returns when these steps are done:

  1. control loads the endpoint's models onto other endpoints, if they were used within the last hour. Until a model has a
     copy there, requests for it still go to this endpoint. control loads nothing onto this endpoint any more.
  2. Each extproc confirms that it sends no more requests to the endpoint.
  3. The last request at the endpoint ends.

Then stop the engine. The endpoint stays out of use until you remove it from the objects, or run the command with --undo. Its
models stay in the engine's memory, so --undo takes effect at once. Ctrl-C interrupts the command and puts the endpoint back.

If control exits meanwhile, the command waits until another one answers. A control with a state file (--state-file) remembers
drained endpoints. In a cluster, the next leader does not remember them. A running command drains the endpoint again. After
the command has ended, the endpoint gets requests again, until its engine stops. In a cluster, delete the pod instead, with
the annotation inference.x-k8s.io/prestop and its preStop hook (docs/kubernetes.md).

The exit status is 0 if the endpoint is drained. It is 1 if a model has no copy elsewhere, because no other endpoint has room
or may load it. It is also 1 if requests are still in flight after --timeout. In both cases the endpoint stays out of use.

The command calls control at its --metrics-port, which answers on loopback only. In a cluster, forward a port to the leader's
pod, as headgate status --help describes.

Usage:

  headgate drain [flags] ENDPOINT

Examples:

  headgate drain 10.0.0.7:8000
  headgate drain --undo 10.0.0.7:8000

`

const (
	// undoTimeout is how long an interrupted command may take to put the endpoint back.
	undoTimeout = 10 * time.Second
	// grace is how long extprocs have to confirm after the time limit.
	grace = 10 * time.Second
)

// Tests change these.
var (
	// pollInterval is the time between two queries.
	pollInterval = 500 * time.Millisecond
	// absence is how long control may be unreachable at a time.
	absence = time.Minute
)

// Command is the command "drain". It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	fs := cli.Flags("headgate drain", usage, out)
	at := fs.String("control-url", query.InThisFolder().ControlURL(), "ask the control that serves metrics at this `URL`, http://HOST:PORT")
	timeout := fs.Duration("timeout", 5*time.Minute, "wait at most this `DURATION` until models have moved and requests have ended")
	undo := fs.Bool("undo", false, "put the endpoint back into use")
	if err := cli.Parse(fs, args, 1); err != nil {
		return err
	}
	a := query.Addresses{Control: *at}
	if err := a.Check(); err != nil {
		return fs.Wrong(err)
	}
	if fs.NArg() != 1 {
		return fs.Wrong(errors.New("want one ENDPOINT, such as 10.0.0.7:8000; headgate status lists them"))
	}
	if *timeout <= 0 {
		return fs.Wrong(fmt.Errorf("--timeout %v: want a positive duration, such as 5m", *timeout))
	}
	d := drain{url: a.Control, endpoint: fs.Arg(0), timeout: *timeout, out: out}
	if *undo {
		return d.undo(ctx)
	}
	return d.run(ctx)
}

// drain is one run of the command.
type drain struct {
	url, endpoint string
	timeout       time.Duration
	out           io.Writer
	printed       string // last line of progress
}

// ask sends a query to control.
func (d *drain) ask(ctx context.Context, q admin.DrainQuery) (r admin.DrainResult, err error) {
	q.Endpoint = d.endpoint
	body, err := json.Marshal(q)
	if err != nil {
		return r, err
	}
	return r, query.JSON(ctx, http.MethodPost, d.url, "/drain", body, &r)
}

func (d *drain) undo(ctx context.Context) error {
	if _, err := d.ask(ctx, admin.DrainQuery{Undo: true}); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "%s is back in use\n", d.endpoint)
	return nil
}

// run drains the endpoint. If ctx ends meanwhile, it puts the endpoint back.
func (d *drain) run(ctx context.Context) error {
	begun := time.Now()
	first := admin.DrainQuery{Seconds: d.timeout.Seconds()}
	r, err := d.ask(ctx, first)
	if ctx.Err() != nil { // control may have got the query
		return d.interrupted(ctx)
	}
	if err != nil {
		return err
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	d.progress(r)
	for heard := time.Now(); ; {
		if r.Gone() {
			return d.end(r)
		}
		if time.Since(begun) > d.timeout+grace {
			return fmt.Errorf("%s is not drained within %v: %s; it stays out of use: stop the engine anyway, run the command again to wait for longer, "+
				"or put it back with headgate drain --undo", d.endpoint, d.timeout, d.printed)
		}
		select {
		case <-ctx.Done():
			return d.interrupted(ctx)
		case <-tick.C:
		}
		next, err := d.ask(ctx, admin.DrainQuery{Progress: true})
		switch {
		case ctx.Err() != nil:
			continue
		case err != nil && time.Since(heard) > absence:
			return err
		case err != nil:
			d.say("control does not answer, and may be restarting: " + err.Error())
			continue
		case !next.Drained && next.Control == r.Control:
			return fmt.Errorf("another headgate drain --undo has put %s back into use", d.endpoint)
		case !next.Drained: // another leader, which does not know of the drain
			d.say("another control leads now: draining again")
			if next, err = d.ask(ctx, first); err != nil {
				d.say(err.Error())
				continue
			}
		}
		r, heard = next, time.Now()
		d.progress(r)
	}
}

// interrupted puts the endpoint back after ctx has ended.
func (d *drain) interrupted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := d.undo(ctx); err != nil {
		return fmt.Errorf("interrupted, and %s cannot be put back: %w; run headgate drain --undo %[1]s", d.endpoint, err)
	}
	return errors.New("interrupted")
}

// say prints a line of progress, unless it is the same as the last one.
func (d *drain) say(line string) {
	if line != d.printed {
		d.printed = line
		fmt.Fprintln(d.out, line)
	}
}

// progress prints how far the drain is.
func (d *drain) progress(r admin.DrainResult) {
	words := []string{display.Count(r.Moved, "model") + " moved"}
	if r.Moving > 0 {
		words = append(words, fmt.Sprintf("%d being loaded elsewhere", r.Moving))
	}
	if n := len(r.Unmoved); n > 0 && !r.Done {
		words = append(words, fmt.Sprintf("%d waiting", n))
	}
	switch {
	case !r.Done:
	case r.Behind > 0:
		words = append(words, display.Count(r.Behind, "extproc")+display.Choose(r.Behind, " has", " have")+" not confirmed yet")
	default:
		words = append(words, display.Count(int(r.InFlight), "request")+" in flight")
		if len(r.Silent) > 0 {
			words = append(words, "not known from extproc "+strings.Join(r.Silent, ", ")+" (an older version, or too busy to answer)")
		}
	}
	d.say(strings.Join(words, ", "))
}

// end prints the result.
func (d *drain) end(r admin.DrainResult) error {
	for _, line := range r.Unmoved {
		fmt.Fprintln(d.out, "not moved: "+line)
	}
	if r.Idle > 0 {
		fmt.Fprintf(d.out, "%s not used for an hour: control loads %s when a request names %[2]s\n", display.Count(r.Idle, "model"),
			display.Choose(r.Idle, "it", "them"))
	}
	if r.Lost > 0 {
		return fmt.Errorf("%s is out of use, but %s no copy elsewhere: requests for them wait for room or fail; add endpoints, or put it back with "+
			"headgate drain --undo %[1]s", d.endpoint, display.Count(r.Lost, "model")+display.Choose(r.Lost, " has", " have"))
	}
	fmt.Fprintf(d.out, "%s is drained: stop its engine, or put it back with headgate drain --undo %[1]s\n", d.endpoint)
	return nil
}
