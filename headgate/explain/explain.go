// Package explain is the command "headgate explain". It prints why a request went where it did, or
// where a request would go now.
package explain

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/display"
	"github.com/headgate/headgate/internal/query"
)

const usage = `headgate explain prints how extproc picked the endpoint of a request, and how the request ended. It finds the request by its id,
which is the header x-request-id of the response. Clients may choose the id. If several requests have the same id, the command
prints all of them, the latest first.

Each extproc keeps its last 10,000 decisions in memory, without prompts. The command asks control, which asks all connected
extprocs. Without control, it asks one extproc. With --log, it reads Envoy's access log instead, which has less detail.

  Route     the LLMRoute and the pool, and the engine's name of the model
  Band      the priority of the LLMRoute, if it is not 0
  Waited    how long the request was queued, and for what
  Policy    how the policy compared the endpoints. "first token" is the predicted time to first token. With policy latency, the
            cost of an endpoint is its cost to this request and to other requests, in shares of their objectives
  Picks     the endpoints that Envoy may try, in order, each with its state at that time
  Outcome   the response, the endpoints that Envoy tried, and the cause of a failure: client, gateway or engine

With --request, it explains which endpoint a request would get now, without sending the request. extproc counts, learns and
loads nothing for it. The output contains every endpoint of the pool, or why it is not a candidate.

control and extproc answer on loopback only, at their --metrics-port. In a cluster, forward a port to the pod of the leader:

  kubectl port-forward -n headgate-system "pod/$(kubectl get lease headgate-control -n headgate-system -o jsonpath='{.spec.holderIdentity}')" 9091

Usage:

  headgate explain [flags] REQUEST-ID
  headgate explain --log FILE [flags] REQUEST-ID
  headgate explain --request FILE [flags]

Examples:

  headgate explain 6f1d2a4e-0c6b-9f5e-8a57-1f8e0f2f7c11
  headgate explain --log envoy.log -o json 6f1d2a4e-0c6b-9f5e-8a57-1f8e0f2f7c11
  headgate explain --request body.json --path /v1/completions -H 'x-session: 7'

`

// Command is the command "explain". It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	var at query.Addresses
	var dry dryRun
	fs := cli.Flags("headgate explain", usage, out)
	fs.Group("Where to ask")
	at.Register(fs.FlagSet)
	log := fs.String("log", "", "read this access log of Envoy, a `FILE` with one JSON object per line, instead of asking extproc; - is the standard input")
	fs.Group("A request that is not sent")
	fs.StringVar(&dry.file, "request", "", "explain which endpoint a request with the body in this `FILE` would get; - is the standard input")
	fs.StringVar(&dry.Path, "path", "/v1/chat/completions", "the request's `PATH`")
	fs.StringVar(&dry.Method, "method", "POST", "the request's `METHOD`")
	lines := fs.StringArrayP("header", "H", nil, "a `HEADER` of the request, written NAME: VALUE; repeatable")
	fs.StringVar(&dry.Listener, "listener", "", "the `LISTENER` of a Gateway that the request uses, NAMESPACE/GATEWAY/NAME")
	fs.StringVar(&dry.Pool, "pool", "", "the InferencePool, `NAMESPACE/NAME`, in the HTTPRoute of the request")
	fs.Group("Output")
	format := fs.StringP("output", "o", "text", "output `FORMAT`: text or json")
	if err := cli.Parse(fs, args, 1); err != nil {
		return err
	}
	id := fs.Arg(0)
	switch {
	case *format != "text" && *format != "json":
		return fs.Wrong(fmt.Errorf("-o %q: want text or json", *format))
	case dry.file == "" && id == "":
		return fs.Wrong(errors.New("name a request: its id, which is the header x-request-id of the answer, or --request FILE"))
	case dry.file != "" && (id != "" || *log != ""):
		return fs.Wrong(errors.New("--request explains a request that is not sent: it goes with neither an id nor --log"))
	}
	if err := at.Check(); err != nil {
		return fs.Wrong(err)
	}
	for _, line := range *lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return fs.Wrong(fmt.Errorf("--header %q: want NAME: VALUE", line))
		}
		dry.Headers = append(dry.Headers, [2]string{strings.TrimSpace(name), strings.TrimSpace(value)})
	}
	switch {
	case *log != "":
		return ofLog(*log, id, *format, out)
	case dry.file != "":
		return dry.explain(ctx, at, *format, out)
	}
	return ofRequest(ctx, at, id, *format, out)
}

// ofRequest prints the decisions about the requests with an id.
func ofRequest(ctx context.Context, at query.Addresses, id, format string, out io.Writer) error {
	body, err := json.Marshal(admin.DecisionsQuery{ID: id})
	if err != nil {
		return err
	}
	answers, err := at.Ask(ctx, admin.Decisions, body)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(answers.Extprocs, func(a admin.Answer) bool { return a.Error == "" }) {
		return fmt.Errorf("no extproc answered%s", failures(answers.Answers))
	}
	var text strings.Builder
	found, kept := 0, 0
	for _, a := range answers.Extprocs {
		var r admin.DecisionsResult
		if a.Error == "" {
			if err := json.Unmarshal(a.Result, &r); err != nil {
				return fmt.Errorf("extproc %s is another version of Headgate: its answer cannot be read (%w)", a.Extproc, err)
			}
		}
		kept += r.Kept
		for i := range r.Decisions {
			found++
			story(&text, &r.Decisions[i], a.Extproc)
		}
		if r.More {
			fmt.Fprintf(&text, "extproc %s has more decisions with this id.\n", a.Extproc)
		}
	}
	if found == 0 && answers.Instead != nil {
		return fmt.Errorf("%s. It has no decision for request %q", answers.Note(), id)
	}
	if found == 0 {
		return fmt.Errorf("%s has no decision for request %q%s: the %d decisions in memory are of other requests. "+
			"It may still wait, or be older, or extproc has restarted, or Envoy alone answered it; its access log may have it: headgate explain --log FILE ID", answers.By, id, failures(answers.Answers), kept)
	}
	return write(out, format, answers, text.String())
}

// write prints the answers as JSON, or as text with a line about the programs that did not answer.
func write(out io.Writer, format string, answers query.Reply, text string) error {
	if format == "json" {
		return printJSON(out, struct {
			admin.Answers
			Note string `json:"note,omitempty"`
		}{answers.Answers, answers.Note()})
	}
	if failed := failures(answers.Answers); failed != "" {
		text += display.Line(fmt.Sprintf("Not all extprocs answered%s.", failed)) + "\n"
	}
	if answers.Instead != nil {
		text += display.Line(answers.Note()+".") + "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// failures describes the extprocs without a result; empty if there is none.
func failures(answers admin.Answers) string {
	var all []string
	for _, a := range answers.Extprocs {
		if a.Error != "" {
			all = append(all, a.Extproc+": "+a.Error)
		}
	}
	if all == nil {
		return ""
	}
	return " (" + strings.Join(all, "; ") + ")"
}

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// dryRun is a request that is not sent.
type dryRun struct {
	admin.ExplainQuery
	file string
}

// explain prints how the request would be decided, by each extproc.
func (d *dryRun) explain(ctx context.Context, at query.Addresses, format string, out io.Writer) (err error) {
	if d.Body, err = read(d.file, admin.MaxBody*3/4-4096); err != nil { // base64 in JSON is longer by a third
		return fmt.Errorf("--request: %w", err)
	}
	body, err := json.Marshal(d.ExplainQuery)
	if err != nil {
		return err
	}
	answers, err := at.Ask(ctx, admin.Explain, body)
	if err != nil {
		return err
	}
	var text strings.Builder
	results := 0
	for _, a := range answers.Extprocs {
		var r admin.ExplainResult
		if a.Error != "" {
			continue
		}
		if err := json.Unmarshal(a.Result, &r); err != nil {
			return fmt.Errorf("extproc %s is another version of Headgate: its answer cannot be read (%w)", a.Extproc, err)
		}
		results++
		foretold(&text, &r, a.Extproc)
	}
	if results == 0 {
		return fmt.Errorf("no extproc of %s explains the request%s", answers.By, failures(answers.Answers))
	}
	return write(out, format, answers, text.String())
}

// read reads a file, or the standard input if its name is -. It is an error if there are more than
// most bytes.
func read(name string, most int64) ([]byte, error) {
	from := io.Reader(os.Stdin)
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		from = file
	}
	text, err := io.ReadAll(io.LimitReader(bufio.NewReader(from), most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return text, err
}
