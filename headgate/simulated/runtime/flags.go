package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/engine"
)

const usage = `Runs a simulated model runtime. It serves mmesh.ModelRuntime over gRPC for ModelMesh, and for loaded models OpenAI
chat and completions, and KServe V2 over REST and gRPC on the same port. It also serves simulated.Echo/Run, a gRPC
method whose messages name no model. Loads beyond its memory or loading threads, and inferences beyond the limit of
their model, fail with RESOURCE_EXHAUSTED. It prints its addresses when it is ready.

` + specHelp + `
` + llm.EventsHelp + `
Usage:

  headgate engine --kind modelruntime --management HOST:PORT|unix:PATH [flags]

Examples:

  headgate engine --kind modelruntime --port 0 --management 127.0.0.1:8085
  headgate engine --kind modelruntime --management unix:.run/runtime.sock --capacity 1Gi --default-size 50Mi \
    --loading-threads 6 --startup 3s --event-log events.jsonl

`

// setup has the values of the flags.
type setup struct {
	Config
	llm.Serving
	management string
}

func parseFlags(args []string, out io.Writer) (setup, error) {
	var s setup
	f := cli.Flags("headgate engine", usage, out)
	f.Group("The engine")
	f.String("kind", string(engine.ModelRuntime), "simulate this `KIND` of engine; other kinds have their own flags")
	f.DurationVar(&s.Startup, "startup", 0, "become ready after this `DURATION`")
	f.Group("Server")
	s.AddFlags(f.FlagSet)
	f.StringVar(&s.management, "management", "127.0.0.1:8085", "serve mmesh.ModelRuntime at this `ADDRESS`, HOST:PORT or unix:PATH")
	f.Group("Models")
	capacity := f.String("capacity", "1Gi", "`MEMORY` for models")
	size := f.String("default-size", "50Mi", "`MEMORY` of a model whose path has no size")
	f.IntVar(&s.LoadingThreads, "loading-threads", 6, "number of `MODELS` to load in parallel")
	f.DurationVar(&s.LoadTimeout, "load-timeout", time.Minute, "load timeout to report to ModelMesh, a `DURATION`")
	f.BoolVar(&s.Unpredicting, "no-predictions", false, "leave predictModelSize unimplemented")
	f.IntVar(&s.Concurrency, "concurrency", 0,
		"limit of concurrent `INFERENCES` per model, reported to ModelMesh (limitModelConcurrency); 0 for no limit")
	unknown := f.String("unknown-model", "",
		"answer calls for an unknown model with this status, `CODE:WORDS`; %s is replaced by the model id (default: Triton's)")
	err := cli.Parse(f, args, 0)
	switch {
	case err != nil:
		return s, err
	case s.Concurrency < 0:
		return s, f.Wrong(fmt.Errorf("--concurrency %d: it must not be below 0", s.Concurrency))
	case s.LoadingThreads < 1:
		return s, f.Wrong(fmt.Errorf("--loading-threads %d: it must be at least 1", s.LoadingThreads))
	}
	if s.Capacity, err = parseSize(*capacity); err != nil {
		return s, f.Wrong(fmt.Errorf("--capacity: %w", err))
	}
	if s.DefaultSize, err = parseSize(*size); err != nil {
		return s, f.Wrong(fmt.Errorf("--default-size: %w", err))
	}
	if *unknown != "" {
		code, words, _ := strings.Cut(*unknown, ":")
		var is codes.Code
		if err := is.UnmarshalJSON([]byte(strconv.Quote(code))); err != nil || is == codes.OK {
			return s, f.Wrong(fmt.Errorf("--unknown-model %s: %q is not a gRPC code such as NOT_FOUND", *unknown, code))
		}
		s.Unknown = status.New(is, words)
	}
	return s, nil
}

// Command runs "headgate engine --kind modelruntime". It serves until ctx ends, and then stops
// immediately.
func Command(ctx context.Context, args []string, out io.Writer) error {
	s, err := parseFlags(args, out)
	if err != nil {
		return err
	}
	var data net.Listener
	if data, s.Events, err = s.Listen(ctx); err != nil {
		return err
	}
	defer data.Close()
	network, address := "tcp", s.management
	if path, ok := strings.CutPrefix(s.management, "unix:"); ok {
		network, address = "unix", path
		// Remove the socket that a killed process left behind.
		if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("--management: %w", err)
			}
		}
	}
	var config net.ListenConfig
	management, err := config.Listen(ctx, network, address)
	if err != nil {
		return fmt.Errorf("--management: %w", err)
	}
	fmt.Fprintf(out, "serving on http://%s\nmanaged at %s\n", data.Addr(), management.Addr())
	return Serve(ctx, New(s.Config), data, management)
}

// Serve serves a runtime until ctx ends. Then it closes the runtime and both listeners.
func Serve(ctx context.Context, r *Runtime, data, management net.Listener) error {
	manager := grpc.NewServer()
	mmesh.RegisterModelRuntimeServer(manager, r)
	server := &http.Server{Handler: r.Handler(), ReadHeaderTimeout: time.Minute}
	calls := r.calls()
	requests, http2 := part(data)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := manager.Serve(management); !errors.Is(err, grpc.ErrServerStopped) { // ErrServerStopped: ctx ended before it started
			return err
		}
		return nil
	})
	group.Go(func() error {
		if err := server.Serve(requests); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		if err := calls.Serve(http2); !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		r.Close()
		manager.Stop()
		calls.Stop()
		return server.Close()
	})
	return group.Wait()
}
