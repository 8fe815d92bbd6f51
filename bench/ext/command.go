// Package ext is "bench ext": a client that sends requests to an endpoint picker as Envoy does, and
// an ext_proc server that decides nothing, to compare pickers with.
package ext

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/listen"
)

const usage = `Measures what an endpoint picker costs. It sends requests to any server of Envoy's ext_proc protocol, as Envoy does.
It also runs an ext_proc server that decides nothing (a no-op): no picker can cost less.

With --target it sends requests for chat completions: the headers that envoy.yaml forwards, then the body in the form that
--mode states. It prints the latency of decisions, the requests a second, and with --pid the CPU time of the picker. In a
closed loop each request follows the end of another. With --rate a request's latency counts from when it was due, however
late the picker let it begin. A stream ends after the decision, or after --hold. With --mode duplex the picker then gets the
headers and the body of an engine's response. With --records it gets the access-log record of each request, as from an Envoy
with envoy.yaml. The command fails if a request fails, or if the picker rejects all of them.

With --noop it lets every request pass. With --endpoint it names an endpoint, as the endpoint-picker protocol requires, and
Envoy gets these endpoints by discovery (EDS), as envoy.yaml expects. It drops access-log records, and reports that it is
healthy. GOMAXPROCS sets the number of processors.

Usage:

  bench ext --target ADDRESS [flags]
  bench ext --noop raw|std --listen ADDRESS [--endpoint IP:PORT]...

Examples:

  # 16 requests at a time, of 1,000 bytes, to an extproc, and its CPU time
  bench ext --target unix:.run/extproc.sock --model text-to-sql --pid "$(pgrep -n extproc)"

  # 500 requests a second of 100 KB, and their access-log records; each prompt is new
  bench ext --target unix:.run/extproc.sock --model llama --rate 500 --body 100000 --records

  # another picker, which gets bodies in chunks, with TLS
  bench ext --target 10.0.0.7:9002 --tls --mode duplex --model llama

  # the load for which llm-d has published the cost of its picker
  bench ext --target unix:.run/extproc.sock --model llama --shape llm-d --pid 4711

  # a no-op in place of extproc, for an Envoy with envoy.yaml
  bench ext --noop raw --listen unix:.run/extproc.sock --endpoint 127.0.0.1:8000

`

// Command runs "bench ext".
func Command(ctx context.Context, args []string, out io.Writer) error {
	var o options
	f := cli.Flags("bench ext", usage, out)
	f.Group("Client")
	f.StringVar(&o.target, "target", "", "send requests to the picker at this `ADDRESS`: unix:PATH or HOST:PORT")
	f.StringVar((*string)(&o.mode), "mode", string(buffered), "`FORM` in which bodies are sent: buffered, duplex (full duplex streamed), or headers (not at all)")
	f.StringVar(&o.model, "model", "m", "`MODEL` that requests ask for")
	f.IntVar(&o.models, "models", 1, "ask for this `NUMBER` of models in turn: MODEL-0, MODEL-1, ...")
	f.IntVar(&o.body, "body", 1000, "size of bodies in `BYTES`")
	f.IntVar(&o.prompts, "prompts", 0, "`NUMBER` of different prompts; 0 makes each prompt new")
	f.IntVar(&o.concurrency, "concurrency", 0, "most `REQUESTS` at a time; 0 means 16, and 1,000 with --rate")
	f.Float64Var(&o.rate, "rate", 0, "send this number of `REQUESTS` a second; 0 means a closed loop")
	f.IntVar(&o.requests, "requests", 0, "stop after this number of `REQUESTS`; 0 means no limit")
	f.DurationVar(&o.duration, "duration", 10*time.Second, "stop after this `TIME`; 0 means no limit")
	f.DurationVar(&o.warmup, "warmup", time.Second, "first send requests for this `TIME`, which are not measured")
	f.DurationVar(&o.hold, "hold", 0, "keep each stream open for this `TIME` after the decision, as Envoy does while an engine answers")
	f.BoolVar(&o.records, "records", false, "also send the access-log record of each request that may pass, as Envoy does with envoy.yaml")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "longest `TIME` that a request may take; 0 means no limit")
	f.IntVar(&o.connections, "connections", 1, "`NUMBER` of connections; Envoy has at least one for each worker")
	f.BoolVar(&o.tls, "tls", false, "use TLS, without verifying the certificate")
	f.IntVar(&o.pid, "pid", 0, "also print the CPU time of the process with this `ID` (Linux)")
	f.StringVar(&o.shape, "shape", "", "send a published `LOAD`: llm-d (98.7 requests a second of 400 KB, for one minute)")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.Group("No-op")
	f.StringVar(&o.noop, "noop", "", "run a no-op on `CODE`: raw (raw bytes, replies assembled in advance), or std (generated code)")
	f.StringVar(&o.listen, "listen", "", "`ADDRESS` of the no-op: unix:PATH or HOST:PORT")
	f.StringSliceVar(&o.endpoints, "endpoint", nil, "`IP:PORT` of an endpoint that the no-op names; repeat it for several, in turn")
	if err := cli.Parse(f, args, 0); err != nil {
		return err
	}
	switch {
	case (o.target == "") == (o.noop == ""):
		return f.Wrong(errors.New("use either --target or --noop"))
	case o.noop == "":
		err := o.apply(f.Changed)
		if err == nil {
			o.texts, err = newPrompts(o.model, o.models, o.prompts, o.body, rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())))
		}
		if err != nil {
			return f.Wrong(err)
		}
		return o.measure(ctx, out)
	case o.listen == "":
		return f.Wrong(errors.New("--noop needs --listen"))
	}
	server, err := noop(o.noop, o.endpoints)
	if err != nil {
		return f.Wrong(err)
	}
	l, err := listen.On("listen", o.listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the no-op (%s) serves %s\n", o.noop, o.listen)
	return serve(ctx, server, l)
}
