package fleet

import (
	"cmp"
	_ "embed"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"slices"

	"github.com/headgate/headgate/bench/traffic"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/workload"
)

// traced is a request of a trace.
type traced struct {
	at float64 // arrival time in seconds
	traffic.Length
	blocks []uint32 // shared blocks of the prompt, of workload.MooncakeBlock tokens each; nil if unknown
}

// recorded is a workload from a trace file.
type recorded struct {
	name, file, about string
	read              func(io.Reader) ([]traced, error)
	// quantum is the resolution of times in the trace, in seconds. Each request gets a random time
	// within it.
	quantum float64
	small   bool    // uses the profile of the smaller model, because prompts are long
	share   float64 // share of requests that must meet their objectives; 0 for the default (bursts may make it impossible)
}

// conversations is the trace from which other workloads take the lengths of prompts and outputs.
const conversations = "azure-conversation"

// traces lists all traces in the order of the output.
var traces = []recorded{
	{conversations, "azure/conv-2023.csv", "Azure's conversations (Splitwise, ISCA 2024), at their own times", readAzure, 0, false, 0},
	{
		"azure-code", "azure/code-2023.csv", "Azure's code completions (Splitwise, ISCA 2024), at their own times, in bursts", readAzure, 0,
		false, 0.9,
	},
	{
		"mooncake-conversation", "mooncake/conversation.jsonl",
		"Mooncake's conversations (FAST 2025), of which 37 % of the tokens were seen before", readMooncake, 3, true, 0,
	},
	{
		"mooncake-synthetic", "mooncake/synthetic.jsonl",
		"Mooncake's synthetic trace (FAST 2025), of which 64 % of the tokens were seen before", readMooncake, 0, true, 0,
	},
}

// open reads a trace from a directory.
func (t recorded) open(dir string) (Workload, error) {
	all, err := t.from(dir)
	if err != nil {
		return Workload{}, err
	}
	w := Workload{Name: t.name, About: t.about, Share: t.share, requests: replay(all, t.quantum)}
	if t.small {
		w.Profile = smallProfile()
	}
	return w, nil
}

// from reads the requests of a trace from a directory.
func (t recorded) from(dir string) ([]traced, error) {
	var all []traced
	err := traffic.Read(dir, t.file, func(r io.Reader) (err error) {
		if all, err = t.read(r); err == nil && len(all) < 2 {
			err = errors.New("it has less than two requests")
		}
		return err
	})
	return all, err
}

// readAzure reads a trace of Azure.
func readAzure(r io.Reader) (all []traced, err error) {
	rows, err := workload.ReadAzure(r)
	for _, q := range rows {
		all = taken(all, q, nil)
	}
	return all, err
}

// readMooncake reads a trace of Mooncake.
func readMooncake(r io.Reader) (all []traced, err error) {
	rows, err := workload.ReadMooncake(r)
	for _, q := range rows {
		all = taken(all, q.Query, q.Blocks)
	}
	return all, err
}

// taken appends a query to the requests if it has both prompt and output tokens.
func taken(all []traced, q workload.Query, blocks []uint32) []traced {
	if q.Prompt == 0 || q.Output == 0 {
		return all
	}
	return append(all, traced{q.At, traffic.Length{Prompt: int(q.Prompt), Output: int(q.Output)}, blocks})
}

// replay returns a function that replays the requests of a trace, scaled to a mean rate. It starts
// at a random request and starts over when the trace ends. Times that the resolution of the trace
// does not distinguish are random.
func replay(all []traced, quantum float64) func(seed uint64, rate float64, n int) iter.Seq[Request] {
	return func(seed uint64, rate float64, n int) iter.Seq[Request] {
		return func(yield func(Request) bool) {
			random := rand.New(rand.NewPCG(seed, 4)) //nolint:gosec // no secret
			spread := slices.Clone(all)
			for i := range spread {
				spread[i].at += quantum * random.Float64()
			}
			slices.SortStableFunc(spread, func(a, b traced) int { return cmp.Compare(a.at, b.at) })
			between := (spread[len(spread)-1].at - spread[0].at) / float64(len(spread)-1)
			span, scale := between*float64(len(spread)), 1/between/rate
			start := random.IntN(len(spread))
			for number := range n {
				is, ended := spread[(start+number)%len(spread)], (start+number)/len(spread)
				at := is.at - spread[start].at + span*float64(ended)
				if !yield(Request{At: at * scale, Prompt: is.prompt(uint32(number), uint32(number/len(spread))), Output: is.Output}) {
					return
				}
			}
		}
	}
}

// rounds is the offset between the block numbers of two repetitions of a trace. It is larger than
// any block number in a trace.
const rounds = 1 << 24

// prompt returns the prompt tokens of a request. time is the number of the trace's repetition:
// prompts of different repetitions share no blocks.
func (t traced) prompt(number, time uint32) []uint32 {
	if t.blocks == nil {
		return prompt(nil, number, t.Prompt)
	}
	all := make([]uint32, 0, t.Prompt)
	for _, b := range t.blocks {
		for range min(workload.MooncakeBlock, t.Prompt-len(all)) {
			all = append(all, b+time*rounds)
		}
	}
	return prompt(all, number, t.Prompt-len(all)) // blocks may cover less than the prompt
}

// lengths returns the prompt and output lengths of all requests of a trace.
func lengths(all []traced) Lengths {
	is := make(Lengths, len(all))
	for i, t := range all {
		is[i] = t.Length
	}
	return is
}

//go:embed llama-3.1-8b-a100x2.yaml
var small []byte

// SmallProfile returns the profile of a model with 8 billion parameters on two GPUs.
func SmallProfile() profile.Profile { return *smallProfile() }

// smallProfile is the profile for traces with long prompts.
func smallProfile() *profile.Profile {
	p, err := profile.Parse(small)
	if err != nil {
		panic(err) // the embedded file is valid
	}
	return &p
}
