package profile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/profile/fit"
)

const fitUsage = `headgate profile fit makes a profile of measured times: how long an engine takes to compute a prompt, and for a step in which each
request gets one token. It prints the profile as YAML.

FILE is CSV, and its first line names the columns. Leave out what you did not measure, or leave the cell empty:

  prompt_tokens    how many tokens of a prompt were computed at once
  context_tokens   how many tokens before them were there already (without it 0)
  prefill_seconds  how long that took, alone on the engine: the time to the first token
  frontend_overhead_seconds
                   the part of prefill_seconds before the prompt was in the queue of the engine (default 0)
  batch            how many requests got a token in a step (without it 1)
  kv_tokens        how many tokens these had in the KV cache together (without it batch times prompt and context;
                   mixed_seconds needs it: those of the batch requests, without the prompt)
  adapters         true where a LoRA adapter ran in the step
  step_seconds     how long the step took: the time between two tokens of a request
  prompts          how many prompts like this were sent at once, if more than one; prefill_seconds is then until all had a first token
  mixed_seconds    how long the step took that computed a prompt (prompt_tokens) beside batch requests; step_seconds is of their steps
                   without it
  first_seconds    the time to the first token of that prompt

A row has prefill_seconds, step_seconds or both. Prompts of at least three lengths are needed, and steps of at least three
kinds; the longest and the shortest that you expect, and some between, are best. Columns model, hardware and tensor_parallel
tell several sets in one file apart. Files of Splitwise (perf_model.csv) and SageServe are read as they are,
and so are those that headgate profile --llm writes.

The source in the profile says how far it is from measurements: each point is left out once, and predicted by all others.
A median error of prompts up to 12 %, and of steps up to 5 %, is what published measurements come to. Where it is much more,
look for rows that were measured while the engine did other things too. What an engine holds, and how long adapters take to
load, is not measured: write that of your engine into limits, load and slot. PoolSettings name the file (spec.profile).

Usage:

  headgate profile fit FILE.csv [flags]

Examples:

  headgate profile fit measured.csv -o profile.yaml
  headgate profile fit perf_model.csv                     print which sets there are, and how well each is fitted
  headgate profile fit perf_model.csv --model llama2-70b --hardware a100-80gb --tensor-parallel 4

`

// assumed contains vLLM's default limits on GPUs, and a typical KV cache size: the real size
// depends on GPU memory.
var assumed = profile.Limits{MaxSequences: 256, MaxBatchedTokens: 8192, KVBlocks: 16384, BlockSize: 16}

// fitFile runs "headgate profile fit" with the arguments and prints the result to out.
func fitFile(args []string, out io.Writer) error {
	fs := cli.Flags("headgate profile fit", fitUsage, out)
	model := fs.String("model", "", "fit the rows of this `MODEL` alone")
	hardware := fs.String("hardware", "", "fit the rows of this `HARDWARE` alone")
	parallel := fs.Int("tensor-parallel", 0, "fit the rows of an engine on this many `GPUS` alone")
	to := fs.StringP("output", "o", "", "write the profile to this `FILE` (default print it)")
	if err := cli.Parse(fs, args, 1); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return fs.Wrong(errors.New("profile fit needs a file of measurements, such as profile fit measured.csv"))
	}
	file := fs.Arg(0)
	all, err := read(file)
	if err != nil {
		return err
	}
	sets := fit.Sets(all)
	var chosen []fit.Set
	for _, s := range sets {
		if (*model == "" || s.Model == *model) && (*hardware == "" || s.Hardware == *hardware) &&
			(*parallel == 0 || s.TensorParallel == *parallel) {
			chosen = append(chosen, s)
		}
	}
	switch {
	case len(chosen) == 0:
		return fmt.Errorf("%s has no such rows; it has those of %s", file, list(sets))
	case len(chosen) > 1 && len(chosen) == len(sets) && *to == "":
		return table(out, file, all, sets)
	case len(chosen) > 1:
		return fmt.Errorf("%s has rows of %s: choose one with --model, --hardware and --tensor-parallel", file, list(chosen))
	}
	f, err := fit.Of(of(all, chosen[0]))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	text := profile.Format(f.Profile(filepath.Base(file), chosen[0], assumed))
	if *to != "" {
		return os.WriteFile(*to, text, 0o644)
	}
	_, err = out.Write(text)
	return err
}

func read(file string) ([]fit.Row, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return fit.Read(file, f)
}

// of returns the rows that belong to one set.
func of(all []fit.Row, s fit.Set) (rows []fit.Row) {
	for _, r := range all {
		if r.Set == s {
			rows = append(rows, r)
		}
	}
	return rows
}

func list(sets []fit.Set) string {
	names := make([]string, len(sets))
	for i, s := range sets {
		names[i] = s.String()
	}
	return strings.Join(names, ", ")
}

// table prints a table of the sets in a measurement file.
func table(out io.Writer, file string, all []fit.Row, sets []fit.Set) error {
	fmt.Fprintf(out, "%s has %d sets. Choose one with --model, --hardware and --tensor-parallel.\n", file, len(sets))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL\tHARDWARE\tTENSOR PARALLEL\tROWS\tPROMPTS\tSTEPS")
	for _, s := range sets {
		rows := of(all, s)
		prompts, steps := "", ""
		if f, err := fit.Of(rows); err != nil {
			prompts = err.Error()
		} else {
			prompts, steps = f.PrefillError.String(), f.StepError.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n", s.Model, s.Hardware, s.TensorParallel, len(rows), prompts, strings.TrimSpace(steps))
	}
	return w.Flush()
}
