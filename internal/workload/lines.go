package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// MooncakeBlock is the number of prompt tokens per hash in a Mooncake trace. A hash covers its own
// block and all blocks before it.
const MooncakeBlock = 512

// Hashed is a query with hashes of its prompt, which show the prefix that it shares with other
// prompts.
type Hashed struct {
	Query
	// Blocks has a hash for each block of [MooncakeBlock] prompt tokens. Hashes at the end may be
	// missing.
	Blocks []uint32
}

// mostLine is the maximum length of a line in bytes.
const mostLine = 16 << 20

// eachLine calls read for each line that is not empty. Errors contain the line number.
func eachLine(r io.Reader, read func(line []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, mostLine)
	number := 1
	for ; lines.Scan(); number++ {
		if line := bytes.TrimSpace(lines.Bytes()); len(line) > 0 {
			if err := read(line); err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", number, err)
	}
	return nil
}

// ReadMooncake reads a Mooncake trace, whose lines must be sorted by time. Queries with a token
// count of 0 are included.
func ReadMooncake(r io.Reader) (all []Hashed, err error) {
	var c clock
	err = eachLine(r, func(line []byte) error {
		var row struct {
			Timestamp *float64 `json:"timestamp"` // in milliseconds
			Input     int32    `json:"input_length"`
			Output    int32    `json:"output_length"`
			Hashes    []uint32 `json:"hash_ids"`
		}
		switch err := json.Unmarshal(line, &row); {
		case err != nil:
			return err
		case row.Timestamp == nil:
			return errors.New(`there is no timestamp: write such as {"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}`)
		case min(row.Input, row.Output) < 0:
			return fmt.Errorf("tokens are %d and %d: write at least 0", row.Input, row.Output)
		}
		at, err := c.since(*row.Timestamp / 1000)
		all = append(all, Hashed{Query{At: at, Prompt: row.Input, Output: row.Output}, row.Hashes})
		return err
	})
	return all, err
}

// readUnhashed reads a Mooncake trace and drops its hashes.
func readUnhashed(r io.Reader) ([]Query, error) {
	hashed, err := ReadMooncake(r)
	all := make([]Query, len(hashed))
	for i, h := range hashed {
		all[i] = h.Query
	}
	return all, err
}

// readAccessLog reads a trace in the format [AccessLog]. Envoy writes a line when a request ends,
// so the lines are not sorted by arrival.
func readAccessLog(r io.Reader, _ Options) (trace, error) {
	var t trace
	var first time.Time
	names := map[string]string{}
	passed := 0
	err := eachLine(r, func(line []byte) error {
		if line[0] != '{' { // a line of Envoy's own log, which may be in the same file
			passed++
			return nil
		}
		var is struct {
			Time time.Time
			Pick struct {
				Model string
				Inner bool // sent by the relay, for a client's request that has its own line
			}
			Usage struct{ Prompt, Completion float64 }
		}
		if err := json.Unmarshal(line, &is); err != nil {
			return err
		}
		if is.Pick.Model == "" || is.Pick.Inner {
			passed++
			return nil
		}
		prompt, output := is.Usage.Prompt, is.Usage.Completion
		switch {
		case is.Time.IsZero():
			return errors.New("there is no time: write such as \"time\":\"2006-01-02T15:04:05.123Z\"")
		case min(prompt, output) < 0 || max(prompt, output) > math.MaxInt32:
			return fmt.Errorf("tokens are %g and %g: write from 0 to %d", prompt, output, math.MaxInt32)
		}
		if first.IsZero() {
			first = is.Time
		}
		t.recorded = append(t.recorded, Query{is.Time.Sub(first).Seconds(), int32(prompt), int32(output), same(names, is.Pick.Model)})
		return nil
	})
	sortByTime(t.recorded)
	var notes []string
	if passed > 0 {
		notes = append(notes, fmt.Sprintf("%d lines are of requests for no model or of something else, and passed over", passed))
	}
	if n := fill(t.recorded); n > 0 {
		notes = append(notes,
			fmt.Sprintf("of %d all tokens or some are those that others for their model have in the mean, for they do not say", n))
	}
	t.about = strings.Join(notes, "; ")
	return t, err
}

// fill sets missing numbers of prompt and output tokens, such as those of failed requests. It uses
// the mean of the same model, and returns how many queries it changed. If a model has no known
// numbers, its queries stay as they are.
func fill(all []Query) (filled int) {
	type sum struct{ tokens, queries float64 }
	var known [2]map[string]sum // sums of prompt tokens and of output tokens, by model
	tokens := func(q *Query) [2]*int32 { return [2]*int32{&q.Prompt, &q.Output} }
	for kind := range known {
		known[kind] = make(map[string]sum)
		for i := range all {
			if n := *tokens(&all[i])[kind]; n > 0 {
				of := known[kind][all[i].Model]
				known[kind][all[i].Model] = sum{of.tokens + float64(n), of.queries + 1}
			}
		}
	}
	for i := range all {
		lacks := false
		for kind, n := range tokens(&all[i]) {
			if of := known[kind][all[i].Model]; *n == 0 && of.queries > 0 {
				*n, lacks = int32(math.Round(of.tokens/of.queries)), true
			}
		}
		if lacks {
			filled++
		}
	}
	return filled
}
