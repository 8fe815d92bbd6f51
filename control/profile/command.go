// Package profile makes profiles of what people measured, or have it measure, as a command.
package profile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/control/profile/probe"
)

const usage = `control profile measures how long a model takes on the server at a URL, and writes that as a profile.

It asks the server as its API is (--api), which it finds out itself: V2 (KServe's Open Inference Protocol over REST) where the server
knows --model by it, else OpenAI's completions, else OpenAI's embeddings.

V2 and embeddings make a profile by batch: one request of 1, 2, 4 rows and so on at a time, up to --max-batch. A V2 request is made of
the model's metadata, whose inputs have the batch as their first dimension: numbers are 1 or 0.5, and dimensions of any size are 1.
Where that is not what the model takes, --body names a file with a request of one row, which is repeated. A server that does not take
a batch because it is too large (400, 413, 422) ends the list.

Completions and chat make a profile of an LLM (--llm is short for --api completions): prompts of each length of --inputs, which no cache
has seen, alone, several at once, and beside requests that decode; and the time from one token to the next with as many requests at once as
--concurrency says. How much later the tokens of others come shows what a prompt costs them, whether the engine takes long to launch a step,
and whether it schedules steps ahead. The terms are fitted as control profile fit does, which reads the CSV too. What the engine says of its
own times (vLLM's /metrics) tells intake and prefill apart; what it says of its KV cache becomes limits. Others are flags, or assumed.

Each is measured until the mean is known: until its 95 % confidence interval is narrower than --precision either way, with the bounds of
--repeat-at-least, --repeat-at-most and --time-limit. Measure beside the server, and while nobody else uses it: what counts is what a client
sees, and the way there is part of it.

With -o profile.yaml every measurement is written into profile.csv as it comes. The same command goes on from there after an end before
the end, and measures nothing twice: not with a larger --max-batch, a finer --precision or another URL either. A file of another
model, API, hardware or request is refused.

control profile fit makes a profile of a file of times that were measured otherwise: control profile fit --help says how.

Usage:

  control profile --url URL [flags]
  control profile fit FILE.csv [flags]

Examples:

  control profile --url http://10.0.0.7:8080 --model resnet --hardware t4 --price 0.35 -o resnet-t4.yaml
  control profile --url http://10.0.0.7:8080 --model iris --body row.json --batches 1,2,4,8,16 -o iris.yaml
  control profile --url http://10.0.0.8:8000 --api embeddings --max-batch 32 -o embed.yaml
  control profile --url http://10.0.0.9:8000 --llm --inputs 16,128,512,2048 --concurrency 1,4,16,64 --max-sequences 128 -o llama.yaml

row.json, for V2: {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}]}

Flags:

`

// Command is the command "profile". It prints to out, and says on standard error how far it is.
func Command(ctx context.Context, args []string, out io.Writer) error {
	return command(ctx, args, out, os.Stderr, nil)
}

func command(ctx context.Context, args []string, out, progress io.Writer, dial probe.Dial) error {
	if len(args) > 0 && args[0] == "fit" {
		return fitFile(args[1:], out)
	}
	fs := pflag.NewFlagSet("profile", pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintln(out, usage+fs.FlagUsagesWrapped(100)) }
	fs.SortFlags = false
	m := measurement{dial: dial}
	m.register(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 || m.url == "" {
		return errors.New("profile wants --url and the URL of a server, or the word fit first and then a file of measurements, such as profile fit measured.csv; " +
			"see control profile --help")
	}
	if err := m.check(fs); err != nil {
		return err
	}
	return m.run(ctx, out, progress)
}
