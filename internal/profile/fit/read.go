package fit

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/profile"
)

// Columns of Headgate's format. The first three identify the set and are optional. Columns of
// values that were not measured are optional, too.
const (
	model          = "model"
	hardware       = "hardware"
	tensorParallel = "tensor_parallel"

	promptSize              = "prompt_tokens"
	contextSize             = "context_tokens"
	batch                   = "batch"
	kvSize                  = "kv_tokens"
	adapters                = "adapters"
	prefillSeconds          = "prefill_seconds"
	frontendOverheadSeconds = "frontend_overhead_seconds"
	stepSeconds             = "step_seconds"
	severalPrompts          = "prompts"
	mixedSeconds            = "mixed_seconds"
	firstSeconds            = "first_seconds"
)

// Columns of the published formats. token_time is in milliseconds per token in Splitwise, and in
// seconds for all tokens in SageServe.
const (
	publishedPrompt = "prompt_size"
	publishedBatch  = "batch_size"
	publishedTokens = "token_size"
	publishedFirst  = "prompt_time"
	publishedOthers = "token_time"
	publishedAll    = "e2e_time"
)

var (
	own = []string{
		model, hardware, tensorParallel, promptSize, contextSize, batch, kvSize, adapters, prefillSeconds,
		frontendOverheadSeconds,
		stepSeconds, severalPrompts, mixedSeconds, firstSeconds,
	}
	// besides are columns in which "headgate profile" records how it measured. Read ignores them.
	besides   = []string{"api", "asked_tokens", "outputs"}
	published = []string{publishedPrompt, publishedBatch, publishedTokens, publishedFirst, publishedOthers, publishedAll}
)

// Read reads measured rows from a CSV file with a header. The columns are those of Headgate, or
// those published by Splitwise and SageServe. Errors start with the given name and the line number.
func Read(name string, from io.Reader) ([]Row, error) {
	reader := csv.NewReader(from)
	header, err := reader.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s is empty: its first line names columns, such as %s,%s,%s,%s,%s", name, promptSize, prefillSeconds, batch,
			kvSize, stepSeconds)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t := table{name: name, at: map[string]int{}}
	for i, column := range header {
		column = strings.TrimSpace(strings.TrimPrefix(column, "\ufeff"))
		if _, twice := t.at[column]; twice {
			return nil, fmt.Errorf("%s:1: the column %q is there twice: leave one of them out", name, column)
		}
		t.at[column] = i
	}
	read := t.own
	if slices.ContainsFunc(published, t.has) {
		read = t.published
		for _, column := range published {
			if !t.has(column) {
				return nil, fmt.Errorf("%s:1: the column %q is missing: the published layout has %s", name, column,
					strings.Join(published, ", "))
			}
		}
	} else {
		for _, column := range header {
			if column = strings.TrimSpace(strings.TrimPrefix(column, "\ufeff")); !slices.Contains(own, column) &&
				!slices.Contains(besides, column) {
				return nil, fmt.Errorf("%s:1: no column is called %q: write some of %s", name, column, strings.Join(own, ", "))
			}
		}
		if !t.has(prefillSeconds) && !t.has(stepSeconds) {
			return nil, fmt.Errorf("%s:1: no column has times: write %s, %s or both", name, prefillSeconds, stepSeconds)
		}
	}
	for {
		cells, err := reader.Read() // returns an error if the row has not as many cells as the header
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		line, _ := reader.FieldPos(0)
		t.lines = append(t.lines, record{line, cells})
	}
	if len(t.lines) == 0 {
		return nil, fmt.Errorf("%s has a header and no rows: write one line for each measurement", name)
	}
	return read()
}

// table is the content of a CSV file.
type table struct {
	name  string
	at    map[string]int // column name -> index
	lines []record
}

type record struct {
	line  int
	cells []string
}

func (t *table) has(column string) bool {
	_, ok := t.at[column]
	return ok
}

// cell returns the value of a line in a column; "" if the file has no such column.
func (t *table) cell(r record, column string) string {
	if i, ok := t.at[column]; ok {
		return strings.TrimSpace(r.cells[i])
	}
	return ""
}

// count parses a non-negative integer. For an empty cell it returns the default, which is the
// argument otherwise.
func (t *table) count(r record, column string, otherwise int) (int, error) {
	text := t.cell(r, column)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, t.fault(r, "%s is %q: write a whole number that is not negative", column, text)
	}
	return int(n), nil
}

// time parses a time. It returns 0 if the cell is empty.
func (t *table) time(r record, column string) (float64, error) {
	text := t.cell(r, column)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0) || math.IsInf(n, 0) {
		return 0, t.fault(r, "%s is %q: write a time above 0, or nothing where it was not measured", column, text)
	}
	return n, nil
}

func (t *table) fault(r record, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", t.name, r.line, fmt.Sprintf(format, args...))
}

func (t *table) set(r record) (Set, error) {
	parallel, err := t.count(r, tensorParallel, 0)
	return Set{t.cell(r, model), t.cell(r, hardware), parallel}, err
}

// own returns the rows of a file in Headgate's format.
func (t *table) own() (rows []Row, err error) {
	for _, r := range t.lines {
		set, errSet := t.set(r)
		prompt, errPrompt := t.count(r, promptSize, 0)
		context, errContext := t.count(r, contextSize, 0)
		sequences, errBatch := t.count(r, batch, 1)
		kv, errKV := t.count(r, kvSize, sequences*(context+prompt))
		prefill, errPrefill := t.time(r, prefillSeconds)
		frontendOverhead, errFrontendOverhead := t.time(r, frontendOverheadSeconds)
		step, errStep := t.time(r, stepSeconds)
		withAdapters, errAdapters := t.yes(r, adapters)
		several, errPrompts := t.count(r, severalPrompts, 0)
		mixed, errMixed := t.time(r, mixedSeconds)
		first, errFirst := t.time(r, firstSeconds)
		if err := errors.Join(errSet, errPrompt, errContext, errBatch, errKV, errPrefill, errFrontendOverhead, errStep, errAdapters,
			errPrompts,
			errMixed, errFirst); err != nil {
			return nil, err
		}
		if mixed > 0 {
			if prompt == 0 || sequences == 0 || prefill > 0 {
				return nil, t.fault(r,
					"%s is of a prompt beside others: write how many tokens it had as %s and how many others there were as %s, and no %s",
					mixedSeconds, promptSize, batch, prefillSeconds)
			}
			if t.cell(r, kvSize) == "" {
				return nil, t.fault(r,
					"%s lacks %s: write how many tokens the %s others had in the KV cache together, without the prompt's", mixedSeconds,
					kvSize, batch)
			}
			row := Row{
				Set: set, Mixed: profile.Work{Sequences: sequences, KVTokens: kv, Adapters: withAdapters}, MixedSeconds: mixed,
				Without: step, FirstToken: first,
			}
			row.Mixed.AddPrompt(context, prompt)
			rows = append(rows, row)
			continue
		}
		row := Row{Set: set, Prompts: several, PrefillSeconds: prefill, FrontendOverhead: frontendOverhead, StepSeconds: step}
		switch {
		case prefill == 0 && step == 0:
			return nil, t.fault(r, "the row has no time: write %s, %s or both", prefillSeconds, stepSeconds)
		case prefill > 0 && prompt == 0:
			return nil, t.fault(r, "%s is of a prompt: write how many tokens were computed as %s", prefillSeconds, promptSize)
		case frontendOverhead > 0 && frontendOverhead >= prefill:
			return nil, t.fault(r, "%s is a part of %s: write a shorter one, or nothing where it was not measured", frontendOverheadSeconds,
				prefillSeconds)
		case step > 0 && sequences == 0:
			return nil, t.fault(r, "%s is of at least one sequence: write how many decoded as %s", stepSeconds, batch)
		}
		if prefill > 0 {
			row.Prefill.AddPrompt(context, prompt)
		}
		if step > 0 {
			row.Step = profile.Work{Sequences: sequences, KVTokens: kv, Adapters: withAdapters}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// yes parses a boolean. It returns false if the cell is empty.
func (t *table) yes(r record, column string) (bool, error) {
	text := t.cell(r, column)
	if text == "" {
		return false, nil
	}
	is, err := strconv.ParseBool(text)
	if err != nil {
		return false, t.fault(r, "%s is %q: write true or false", column, text)
	}
	return is, nil
}

// published returns the rows of a file in the format of Splitwise or SageServe, which have the same
// columns. The unit of token_time is detected from the total time. If the total is about
// prompt_time plus token_time, token_time is in seconds for all tokens (SageServe). Otherwise it is
// in milliseconds per token (Splitwise).
//
// If a row has several prompts, its prompt_time is not used. In SageServe it is the time of only
// one of the prompts. In Splitwise it is not the time of one step: with two GPUs, 64 prompts take
// half as long as 8.
func (t *table) published() (rows []Row, err error) {
	type measured struct {
		record
		set                   Set
		prompt, batch, tokens int
		first, others, all    float64
	}
	var lines []measured
	var ratios []float64
	for _, r := range t.lines {
		m := measured{record: r}
		var faults [7]error
		m.set, faults[0] = t.set(r)
		m.prompt, faults[1] = t.count(r, publishedPrompt, 0)
		m.batch, faults[2] = t.count(r, publishedBatch, 0)
		m.tokens, faults[3] = t.count(r, publishedTokens, 0)
		m.first, faults[4] = t.time(r, publishedFirst)
		m.others, faults[5] = t.time(r, publishedOthers)
		m.all, faults[6] = t.time(r, publishedAll)
		if err := errors.Join(faults[:]...); err != nil {
			return nil, err
		}
		switch {
		case m.prompt == 0 || m.batch == 0:
			return nil, t.fault(r, "%s or %s is 0 or empty: write at least 1", publishedPrompt, publishedBatch)
		case m.tokens < 2:
			return nil, t.fault(r, "%s is %d: write at least 2, for the first token has no decode step", publishedTokens, m.tokens)
		case m.first == 0 || m.others == 0 || m.all <= m.first:
			return nil, t.fault(r, "write %s, %s, and an %s that is longer than the first", publishedFirst, publishedOthers, publishedAll)
		}
		lines, ratios = append(lines, m), append(ratios, (m.all-m.first)/m.others)
	}
	slices.Sort(ratios)
	ofAll := Quantile(ratios, 0.5) < 2
	for _, m := range lines {
		row := Row{Set: m.set}
		decoded := float64(m.tokens - 1)
		if ofAll {
			row.PrefillSeconds, row.StepSeconds = m.first, m.others/decoded
		} else {
			row.PrefillSeconds, row.StepSeconds = m.first/1000, m.others/1000
			decoded = min(decoded, math.Round((m.all-m.first)/m.others)) // an output that ended early has fewer tokens in the KV cache
		}
		if m.batch > 1 {
			row.PrefillSeconds = 0
		} else {
			row.Prefill.AddPrompt(0, m.prompt)
		}
		row.Step = profile.Work{Sequences: m.batch, KVTokens: m.batch * (m.prompt + int(decoded)/2)}
		rows = append(rows, row)
	}
	return rows, nil
}

// Sets returns the different sets of the rows, in order of first appearance.
func Sets(rows []Row) (sets []Set) {
	for _, r := range rows {
		if !slices.Contains(sets, r.Set) {
			sets = append(sets, r.Set)
		}
	}
	return sets
}
