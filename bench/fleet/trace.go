package fleet

import (
	"bufio"
	"cmp"
	_ "embed"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/bench/traffic"
	"github.com/headgate/headgate/internal/profile"
)

// traced is a request of a trace.
type traced struct {
	at float64 // seconds
	traffic.Length
	blocks []uint32 // what of the prompt others share, by the block of mooncakeBlock tokens; nil where nobody says
}

// trace is a workload in a file.
type trace struct {
	name, file, about string
	read              func(io.Reader) ([]traced, error)
	// quantum is to how many seconds the trace rounds its times: requests come somewhere in between.
	quantum float64
	small   bool    // it is for the smaller model, for its prompts are long
	share   float64 // of the requests that are to keep their objectives; 0 is the usual one: in bursts nobody keeps that
}

// conversations is the trace whose lengths other workloads have.
const conversations = "azure-conversation"

// traces in the order in which they are listed.
var traces = []trace{
	{conversations, "azure/conv-2023.csv", "Azure's conversations (Splitwise, ISCA 2024), at their own times", readAzure, 0, false, 0},
	{"azure-code", "azure/code-2023.csv", "Azure's code completions (Splitwise, ISCA 2024), at their own times, in bursts", readAzure, 0, false, 0.9},
	{"mooncake-conversation", "mooncake/conversation.jsonl", "Mooncake's conversations (FAST 2025), of which 37 % of the tokens were seen before", readMooncake, 3, true, 0},
	{"mooncake-synthetic", "mooncake/synthetic.jsonl", "Mooncake's synthetic trace (FAST 2025), of which 64 % of the tokens were seen before", readMooncake, 0, true, 0},
}

// open reads a trace from a folder.
func (t trace) open(dir string) (Workload, error) {
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

// from returns the requests of a trace in a folder.
func (t trace) from(dir string) ([]traced, error) {
	var all []traced
	err := traffic.Read(dir, t.file, func(r io.Reader) (err error) {
		if all, err = t.read(r); err == nil && len(all) < 2 {
			err = errors.New("it has less than two requests")
		}
		return err
	})
	return all, err
}

// readAzure reads a trace of Azure's: TIMESTAMP, ContextTokens, GeneratedTokens.
func readAzure(r io.Reader) ([]traced, error) {
	rows := csv.NewReader(r)
	rows.FieldsPerRecord = 3
	if _, err := rows.Read(); err != nil {
		return nil, err
	}
	var all []traced
	var first time.Time
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		at, timeErr := time.Parse("2006-01-02 15:04:05.9999999", row[0])
		prompt, promptErr := strconv.Atoi(row[1])
		output, outputErr := strconv.Atoi(row[2])
		if err := errors.Join(timeErr, promptErr, outputErr); err != nil {
			line, _ := rows.FieldPos(0)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if len(all) == 0 {
			first = at
		}
		if prompt > 0 && output > 0 {
			all = append(all, traced{at: at.Sub(first).Seconds(), Length: traffic.Length{Prompt: prompt, Output: output}})
		}
	}
}

// mooncakeBlock is the tokens of which a hash of a Mooncake trace says what they are.
const mooncakeBlock = 512

// readMooncake reads a trace of Mooncake's: lines of JSON.
func readMooncake(r io.Reader) ([]traced, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	var all []traced
	for number := 1; lines.Scan(); number++ {
		var row struct {
			Timestamp float64  `json:"timestamp"`
			Input     int      `json:"input_length"`
			Output    int      `json:"output_length"`
			Hashes    []uint32 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if row.Input > 0 && row.Output > 0 {
			all = append(all, traced{row.Timestamp / 1000, traffic.Length{Prompt: row.Input, Output: row.Output}, row.Hashes})
		}
	}
	return all, lines.Err()
}

// replay sends requests of a trace from a moment on that a seed says, and from its beginning again after its end, faster or slower so that
// the mean rate of the whole trace is the one that is asked for. Times that are rounded to a quantum are spread by chance.
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

// rounds is more than there are blocks in a trace.
const rounds = 1 << 24

// prompt is the tokens of a request of a number, which shares nothing with those of another time that the trace is sent.
func (t traced) prompt(number, time uint32) []uint32 {
	if t.blocks == nil {
		return prompt(nil, number, t.Prompt)
	}
	all := make([]uint32, 0, t.Prompt)
	for _, b := range t.blocks {
		for range min(mooncakeBlock, t.Prompt-len(all)) {
			all = append(all, b+time*rounds)
		}
	}
	return prompt(all, number, t.Prompt-len(all)) // hashes may be too few
}

// lengths are those of the requests of a trace.
func lengths(all []traced) Lengths {
	is := make(Lengths, len(all))
	for i, t := range all {
		is[i] = t.Length
	}
	return is
}

//go:embed llama-3.1-8b-a100x2.yaml
var small []byte

// smallProfile is of the model for the traces that have long prompts.
func smallProfile() *profile.Profile {
	p, err := profile.Parse(small)
	if err != nil {
		panic(err) // it is written beside this
	}
	return &p
}
