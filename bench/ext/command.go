// Package ext is "bench ext": an ext_proc server that decides nothing, to compare endpoint pickers
// with.
package ext

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/listen"
)

const usage = `Runs an ext_proc server that decides nothing (a no-op). What Envoy and a no-op cost is the least that Envoy and any
endpoint picker cost.

The no-op lets every request pass. With --endpoint it names an endpoint, as the endpoint-picker protocol requires, and
Envoy gets these endpoints by discovery (EDS), as envoy.yaml expects. It drops access-log records, and reports that it is
healthy. GOMAXPROCS sets the number of processors.

Usage:

  bench ext --noop raw|std --listen ADDRESS [flags]

Examples:

  bench ext --noop raw --listen unix:.run/extproc.sock --endpoint 127.0.0.1:8000
  bench ext --noop std --listen 127.0.0.1:9002 --endpoint 127.0.0.1:8000 --endpoint 127.0.0.1:8001

`

// Command runs "bench ext".
func Command(ctx context.Context, args []string, out io.Writer) error {
	f := cli.Flags("bench ext", usage, out)
	kind := f.String("noop", "", "run a no-op on `CODE`: raw (raw bytes, replies assembled in advance), or std (generated code)")
	at := f.String("listen", "", "`ADDRESS` of the no-op: unix:PATH or HOST:PORT")
	endpoints := f.StringSlice("endpoint", nil, "`IP:PORT` of an endpoint that the no-op names; repeat it for several, in turn")
	if err := cli.Parse(f, args, 0); err != nil {
		return err
	}
	if *kind == "" || *at == "" {
		return f.Wrong(errors.New("--noop and --listen are missing"))
	}
	server, err := noop(*kind, *endpoints)
	if err != nil {
		return f.Wrong(err)
	}
	l, err := listen.On("listen", *at)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the no-op (%s) serves %s\n", *kind, *at)
	return serve(ctx, server, l)
}
