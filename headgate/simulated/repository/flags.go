package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/listen"
)

const usage = `Runs a simulated engine with a model repository, and prints its address when it is ready:

  mlserver, triton  V2 model repository (index, load, unload) and V2 inference, whose answers have no outputs
  torchserve        management API and predictions on one port; the source of a model is its name, with or without .mar
  tfserving         gRPC model management; the source of a model is a path that ends in its name

A model name may be followed by its behaviour, as KEY=VALUE&..., with %20 for a space:

  load=300ms   duration of a load (default 0s)
  unload=1s    duration of an unload (default 0s)
  fail=WORDS   a load fails at its end with this message
  fileless     the directory of the model has no files

` + llm.EventsHelp + `
Usage:

  headgate engine --kind mlserver|triton|torchserve|tfserving [flags]

Examples:

  headgate engine --kind mlserver --port 8080 --model iris --model 'wine=load=2s&unload=1s' --model 'bad=fail=no%20weights'
  headgate engine --kind triton --model resnet=load=3s --event-log events.jsonl
  curl -d '{}' localhost:8000/v2/repository/models/iris/load

`

// setup has the values of the flags.
type setup struct {
	Config
	llm.Serving
}

func parseFlags(args []string, out io.Writer) (setup, error) {
	s := setup{Config: Config{Models: make(map[string]Model)}}
	f := cli.Flags("headgate engine", usage, out)
	f.Group("The engine")
	kind := f.String("kind", string(engine.Triton),
		"simulate this `KIND` of engine: mlserver, triton, torchserve or tfserving; other kinds have their own flags")
	f.Group("Server")
	s.AddFlags(f.FlagSet)
	f.Group("Models")
	models := f.StringArray("model", nil, "add the model `NAME[=BEHAVIOUR]` to the repository; may be repeated")
	f.BoolVar(&s.Fixed, "fixed", false,
		"reject loads and unloads, like a Triton without explicit model control, which has all models loaded, or a TorchServe without its model API")
	if err := cli.Parse(f, args, 0); err != nil {
		return s, err
	}
	if s.Kind = engine.Kind(*kind); !s.Kind.Repository() {
		return s, f.Wrong(fmt.Errorf("--kind %s: it has no model repository", *kind))
	}
	for _, text := range *models {
		name, how, _ := strings.Cut(text, "=")
		m, err := parseModel(how)
		if err != nil {
			return s, f.Wrong(fmt.Errorf("--model %s: %w", text, err))
		}
		if err := engine.CheckStored(s.Kind, name); err != nil {
			return s, f.Wrong(fmt.Errorf("--model %s: %q is not a valid name: %w", text, name, err))
		}
		s.Models[name] = m
	}
	return s, nil
}

// parseModel parses a flag that describes how a model behaves.
func parseModel(text string) (m Model, err error) {
	values, err := url.ParseQuery(text)
	if err != nil {
		return m, err
	}
	for key, all := range values {
		switch value := all[len(all)-1]; key {
		case "load":
			m.Load, err = time.ParseDuration(value)
		case "unload":
			m.Unload, err = time.ParseDuration(value)
		case "fail":
			m.Fail = value
		case "fileless":
			m.Fileless = true
		default:
			err = errors.New("there is no such key; headgate engine --kind triton --help has them all")
		}
		if err != nil {
			return m, fmt.Errorf("%s: %w", key, err)
		}
	}
	return m, nil
}

// Command runs "headgate engine" with --kind mlserver, triton, torchserve or tfserving. It serves
// until ctx ends, and then stops immediately.
func Command(ctx context.Context, args []string, out io.Writer) error {
	s, err := parseFlags(args, out)
	if err != nil {
		return err
	}
	var listener net.Listener
	if listener, s.Events, err = s.Listen(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "serving on http://%s\n", listener.Addr())
	return Serve(ctx, New(s.Config), listener)
}

// Serve serves an engine until ctx ends. Then it closes the listener and all connections, and
// aborts running loads.
func Serve(ctx context.Context, s *Server, listener net.Listener) error {
	defer close(s.over)
	if s.config.Kind == engine.TFServing {
		return serveCalls(ctx, s, listener)
	}
	return listen.HTTP(ctx, listener, s.Handler())
}
