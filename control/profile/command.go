// Package profile is the command headgate profile: it measures latencies and fits profiles.
package profile

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/headgate/headgate/control/profile/probe"
	"github.com/headgate/headgate/internal/cli"
)

const usage = `headgate profile measures the latency of a model on the server at a URL and writes it as a profile.

Without --api it detects the API: first V2 (KServe's Open Inference Protocol over REST), if the server has
--model there. Otherwise OpenAI completions, then OpenAI embeddings.

V2 and embeddings give a batch profile: control sends one request at a time, with 1, 2, 4 items and so on, up to
--max-batch. It creates V2 requests from the metadata of the model: the first dimension is the batch, numbers are
1 or 0.5, and variable dimensions are 1. If the model needs other inputs, --body names a file with a request of
one item, which control repeats. It stops at the first batch that the server rejects as too large (400, 413, 422).

Completions and chat give an LLM profile (--llm is short for --api completions). It measures uncached prompts
of each length in --prompt-tokens: alone, several at once, and beside decoding requests. It measures the time
between tokens at each --concurrency. The delay of other requests' tokens shows the cost of a prompt, the launch
overhead of a step, and whether the engine schedules steps asynchronously. control fits the terms as control
profile fit does, which also reads the CSV file. The engine's own metrics (vLLM's /metrics) separate frontend
overhead from prefill and give the size of the KV cache. Other limits come from flags or are assumed.

control measures each point until the 95 % confidence interval of its mean is narrower than --precision, within
--min-samples, --max-samples and --time-limit. Measure close to the server while nobody else uses it, because the
profile contains the latency that the client sees, network included.

With -o profile.yaml, control writes each measurement to profile.csv at once. After an interruption the same
command resumes there and measures nothing twice, also with a larger --max-batch, a smaller --precision or another
URL. It rejects a file of another model, API, hardware or request.

headgate profile fit makes a profile from other measurements: see headgate profile fit --help.

Usage:

  headgate profile --url URL [flags]
  headgate profile fit FILE.csv [flags]

Examples:

  headgate profile --url http://10.0.0.7:8080 --model resnet --hardware t4 --price 0.35 -o resnet-t4.yaml
  headgate profile --url http://10.0.0.7:8080 --model iris --body row.json --batches 1,2,4,8,16 -o iris.yaml
  headgate profile --url http://10.0.0.8:8000 --api embeddings --max-batch 32 -o embed.yaml
  headgate profile --url http://10.0.0.9:8000 --llm --prompt-tokens 16,128,512,2048 --concurrency 1,4,16,64 --max-sequences 128 -o llama.yaml

row.json, for V2: {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}]}

`

// Command runs "headgate profile" with the arguments. It prints the profile to out and reports
// progress on standard error.
func Command(ctx context.Context, args []string, out io.Writer) error {
	return command(ctx, args, out, os.Stderr, nil)
}

func command(ctx context.Context, args []string, out, progress io.Writer, dial probe.Dial) error {
	if len(args) > 0 && args[0] == "fit" {
		return fitFile(args[1:], out)
	}
	fs := cli.Flags("headgate profile", usage, out)
	m := measurement{dial: dial}
	m.register(fs)
	if err := cli.Parse(fs, args, len(args)); err != nil {
		return err
	}
	if fs.NArg() > 0 || m.url == "" {
		return fs.Wrong(errors.New("profile needs --url with the URL of a server, or fit with a file of measurements, such as profile fit measured.csv"))
	}
	if err := m.check(fs.FlagSet); err != nil {
		return fs.Wrong(err)
	}
	return m.run(ctx, out, progress)
}
