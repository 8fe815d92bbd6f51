package ext

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/headgate/headgate/bench/pace"
	"github.com/headgate/headgate/internal/process"
)

// options are the flags of bench ext.
type options struct {
	target, model, shape               string
	mode                               mode
	body, models, prompts              int
	concurrency, requests, connections int
	rate                               float64
	duration, warmup, hold, timeout    time.Duration
	pid                                int
	tls, json, records                 bool

	noop, listen string
	endpoints    []string

	texts *prompts // made from the flags
}

// apply applies --shape to the flags that the user has not set, replaces zeros by their meaning,
// and checks the flags of the client.
func (o *options) apply(changed func(flag string) bool) error {
	switch o.shape {
	case "":
	case llmd.Picker:
		if !changed("rate") {
			o.rate = 98.7
		}
		if !changed("body") {
			o.body = 400_000
		}
		if !changed("duration") && o.requests == 0 {
			o.duration = time.Minute
		}
	default:
		return fmt.Errorf("--shape %q: use %s", o.shape, llmd.Picker)
	}
	if changed("requests") && !changed("duration") {
		o.duration = 0
	}
	switch {
	case o.concurrency != 0:
	case o.rate > 0:
		o.concurrency = 1000
	default:
		o.concurrency = 16
	}
	if _, ok := bodyModes[o.mode]; !ok {
		return fmt.Errorf("--mode %q: use %s, %s or %s", o.mode, buffered, duplex, headers)
	}
	if o.models < 1 || o.connections < 1 || o.concurrency < 1 {
		return errors.New("--models, --connections and --concurrency must be at least 1")
	}
	if o.prompts < 0 || o.requests < 0 || o.rate < 0 || min(o.duration, o.warmup, o.hold, o.timeout) < 0 {
		return errors.New("numbers and times must not be negative")
	}
	if o.requests == 0 && o.duration == 0 {
		return errors.New("--requests or --duration must limit the run")
	}
	return nil
}

// measure sends requests to the target, and prints the result.
func (o *options) measure(ctx context.Context, out io.Writer) (err error) {
	conns, closeAll, err := connect(o.target, o.connections, o.tls)
	if err != nil {
		return err
	}
	defer closeAll()
	c := &client{prompts: o.texts, mode: o.mode, timeout: o.timeout, hold: o.hold, conns: conns}
	if o.records {
		if c.records, err = newRecorder(ctx, conns[0]); err != nil {
			return fmt.Errorf("--records: %w", err)
		}
		defer func() {
			if failed := c.records.close(); failed != nil {
				err = errors.Join(err, fmt.Errorf("--records: %w", failed))
			}
		}()
	}
	for range conns { // opens each connection; a wrong address fails at once
		if _, _, err := c.ask(ctx); err != nil {
			return fmt.Errorf("--target %s: %w", o.target, err)
		}
	}
	l := pace.Load{Rate: o.rate, Requests: o.requests, Duration: o.duration}
	if o.warmup > 0 {
		if _, _, err := send(ctx, pace.Load{Rate: o.rate, Duration: o.warmup}, o.concurrency, c.ask); err != nil {
			return err
		}
	}
	before, err := o.cpu()
	if err != nil {
		return err
	}
	all, took, err := send(ctx, l, o.concurrency, c.ask)
	if err != nil {
		return err
	}
	after, err := o.cpu()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r := Result{Target: o.target, Shape: o.shape, Mode: o.mode, Body: o.body, Concurrency: o.concurrency, Rate: o.rate}
	r.Records = o.records
	if o.shape == llmd.Picker {
		r.Published = &llmd
	}
	r.set(all, took, after-before)
	if o.json {
		err = json.NewEncoder(out).Encode(r)
	} else {
		r.print(out)
	}
	return errors.Join(err, r.err())
}

// cpu returns the CPU time of the process --pid; 0 without it.
func (o *options) cpu() (time.Duration, error) {
	if o.pid == 0 {
		return 0, nil
	}
	return process.CPUTime(o.pid)
}
