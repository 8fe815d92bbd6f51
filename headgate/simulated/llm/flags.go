package llm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

const usage = `Runs a simulated engine. It serves vLLM's HTTP API: OpenAI chat, completions, embeddings and responses,
Anthropic messages, LoRA adapters, and /metrics. It has the timing of a GPU: requests queue, share
steps, use the prefix cache and wait for adapter slots, according to a profile. Its texts are
meaningless.

MODEL is the model argument of vLLM. It is also the name of the model unless --served-model-name is
set. Flags have the names of vLLM's. The engine prints its address when it is ready.

With --kind sglang it has SGLang's adapter API and metrics, based on SGLang's documentation only.
With --kind modelruntime it is an engine that ModelMesh manages. With --kind mlserver, triton, torchserve
or tfserving it has a model repository. These kinds have their own flags: headgate engine --kind triton --help.

` + EventsHelp + `

Usage:

  headgate engine [MODEL] [flags]

Examples:

  headgate engine --port 0
  headgate engine meta-llama/Llama-2-70b --served-model-name llama --max-loras 2 --lora-modules sql=sim: chat=sim:rank=16
  headgate engine --profile l40s.yaml --shutdown-timeout 15 --fault latency=50ms@0.1 --fault reset-after=20@0.01

  curl localhost:8000/v1/chat/completions -H 'content-type: application/json' \
    -d '{"messages": [{"role": "user", "content": "hello"}], "stream": true}'
  headgate engine --kind sglang --event-log events.jsonl

  curl localhost:8000/v1/load_lora_adapter -H 'content-type: application/json' \
    -d '{"lora_name": "sql", "lora_path": "sim:rank=16"}'

`

// Command runs "headgate engine". It serves until ctx ends, and then stops as described at
// Config.ShutdownTimeout.
func Command(ctx context.Context, args []string, out io.Writer) error {
	c, serving, err := parseFlags(args, out)
	if err != nil {
		return err
	}
	if c.Listener, c.Events, err = serving.Listen(ctx); err != nil {
		return err
	}
	s, err := New(c)
	if err != nil {
		return errors.Join(err, c.Listener.Close())
	}
	fmt.Fprintf(out, "serving on http://%s\n", c.Listener.Addr())
	return s.Run(ctx)
}

// parseFlags parses the command line. It returns the configuration and where to serve. Help goes to
// out.
func parseFlags(args []string, out io.Writer) (c Config, serving Serving, err error) {
	f := cli.Flags("headgate engine", usage, out)
	f.Group("The engine")
	kind := f.String("kind", string(engine.VLLM),
		"simulate this `KIND` of engine: vllm, sglang, modelruntime, mlserver, triton, torchserve or tfserving")
	file := f.String("profile", "", "profile of the engine, a YAML `FILE` (default: a 70B model on four A100 GPUs)")
	f.Uint64Var(&c.Seed, "seed", 0, "random seed of texts, ids, load times and faults, a `NUMBER`")
	f.Group("Server")
	serving.AddFlags(f.FlagSet)
	f.StringVar(&c.APIKey, "api-key", "", "require this `KEY` on paths under /v1")
	f.BoolVar(&c.RequestIDHeaders, "enable-request-id-headers", false, "set x-request-id on every response")
	keepAlive := f.Float64("sse-keep-alive-interval", 0, "send a comment on a stream after `SECONDS` of silence (default: never)")
	f.BoolVar(&c.SleepMode, "enable-sleep-mode", false, "serve /sleep, /wake_up and /is_sleeping")
	f.BoolVar(&c.StoreResponses, "store-responses", false,
		"store the responses of /v1/responses, like vLLM with VLLM_ENABLE_RESPONSES_API_STORE=1")
	f.Group("Models and requests")
	f.StringArrayVar(&c.ServedNames, "served-model-name", nil, "`NAME` of the base model; may be repeated, the first is its own")
	f.IntVar(&c.MaxModelLen, "max-model-len", 0, "limit the `TOKENS` of a request (default 4096, or the size of the KV cache)")
	f.IntVar(&c.MaxQueued, "max-num-queued-reqs", 0, "answer 503 if this many `REQUESTS` wait or run (default: no limit)")
	maxSequences := f.Int("max-num-seqs", 0, "limit a batch to this many `REQUESTS` (default: from the profile)")
	f.Group("LoRA adapters")
	adapters := f.StringArray("lora-modules", nil,
		"load the adapter `NAME=PATH` at the start; may be repeated. PATH is a directory, sim: or sim:rank=N; sim:hang, sim:unlisted and sim:busy=N make loads fail")
	maxLoras := f.Int("max-loras", 0, "number of adapter `SLOTS` on the GPU (default: from the profile)")
	maxCPULoras := f.Int("max-cpu-loras", 0, "number of `ADAPTERS` in host memory (default: from the profile)")
	f.IntVar(&c.MaxLoRARank, "max-lora-rank", 16, "reject adapters with a higher `RANK`")
	f.Group("Shutdown and faults")
	shutdown := f.Float64("shutdown-timeout", 0,
		"let requests finish for up to `SECONDS` after SIGTERM; with 0 they hang until their clients leave, as in vLLM")
	delay := f.Float64("shutdown-delay", 0,
		"keep answering for `SECONDS` of --shutdown-timeout after SIGTERM and the last request, like vLLM while its processes end: it rejects new requests, and a load hangs")
	faults := f.StringArray("fault", nil,
		"apply this `FAULT` to inference requests: latency=DURATION, status=CODE, reset, reset-after=N, hang or idle=DURATION, each optionally with @PROBABILITY; may be repeated. A request can set its own with the header "+
			FaultHeader)
	if err := cli.Parse(f, spread(args), 1); err != nil {
		return c, serving, err
	}
	c.Model = f.Arg(0)
	if *keepAlive < 0 || *shutdown < 0 || *delay < 0 {
		return c, serving, f.Wrong(errors.New("times must not be negative"))
	}
	if c.Kind = engine.Kind(*kind); !simulated(c.Kind) {
		return c, serving, f.Wrong(errKind(c.Kind))
	}
	c.KeepAlive = time.Duration(*keepAlive * float64(time.Second))
	c.ShutdownTimeout = time.Duration(*shutdown * float64(time.Second))
	c.ShutdownDelay = time.Duration(*delay * float64(time.Second))
	if c.Adapters, err = parseAdapters(*adapters); err != nil {
		return c, serving, f.Wrong(fmt.Errorf("--lora-modules: %w", err))
	}
	if c.Faults, err = parseFaults(*faults); err != nil {
		return c, serving, f.Wrong(fmt.Errorf("--fault: %w", err))
	}
	c.Profile, err = readProfile(*file, profile.Limits{GPUAdapters: *maxLoras, HostAdapters: *maxCPULoras, MaxSequences: *maxSequences})
	return c, serving, err
}

func parseAdapters(texts []string) (all []Adapter, err error) {
	for _, text := range texts {
		name, path, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not NAME=PATH", text)
		}
		all = append(all, Adapter{Name: name, Path: path})
	}
	return all, nil
}

// readProfile reads a profile from a file. Limits that are set by flags (not 0) override those of
// the file.
func readProfile(file string, limits profile.Limits) (profile.Profile, error) {
	p := DefaultProfile()
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return p, fmt.Errorf("--profile: %w", err)
		}
		if p, err = profile.Parse(text); err != nil {
			return p, fmt.Errorf("--profile %s: %w", file, err)
		}
	}
	if limits.MaxSequences != 0 {
		p.Limits.MaxSequences = limits.MaxSequences
	}
	if limits.GPUAdapters != 0 {
		p.Limits.GPUAdapters = limits.GPUAdapters
		// Host memory must have room for at least as many adapters as there are slots.
		p.Limits.HostAdapters = max(p.Limits.HostAdapters, limits.GPUAdapters)
	}
	if limits.HostAdapters != 0 {
		p.Limits.HostAdapters = limits.HostAdapters
	}
	return p, nil
}

// several are the flags that may be followed by several values, as in vLLM.
var several = []string{"--served-model-name", "--lora-modules"}

// spread repeats each of the flags in several before each of its values, because package pflag
// permits one value after a flag.
func spread(args []string) []string {
	var out []string
	repeats := "" // the flag that takes several values and whose first value was read; else empty
	for i, a := range args {
		switch {
		case strings.HasPrefix(a, "-"):
			repeats = ""
		case i > 0 && slices.Contains(several, args[i-1]):
			repeats = args[i-1]
		case repeats != "":
			out = append(out, repeats)
		}
		out = append(out, a)
	}
	return out
}
