package workload

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names of CSV columns. In files, upper and lower case are equivalent.
const (
	atColumn        = "at"
	timestampColumn = "timestamp"
	modelColumn     = "model"
	promptColumn    = "prompt_tokens"
	outputColumn    = "output_tokens"
	rateColumn      = "rate"
	cvColumn        = "cv"
	minuteColumn    = "minute"
	secondsColumn   = "seconds"
	timeColumn      = "time"
	contextColumn   = "contexttokens"
	generatedColumn = "generatedtokens"
)

// column returns the normalized form of a name in a header.
func column(name string) string {
	return strings.ToLower(strings.TrimSpace(name))
}

// table reads a CSV file that has a header.
type table struct {
	rows  *csv.Reader
	at    map[string]int // column name -> index
	cells []string       // cells of the current row
}

// newTable reads the header of a CSV file. All of its columns must be in known.
func newTable(r io.Reader, known ...string) (*table, error) {
	t := &table{rows: csv.NewReader(r), at: map[string]int{}}
	header, err := t.rows.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("it is empty: its first line names columns, some of %s", strings.Join(known, ", "))
	}
	if err != nil {
		return nil, err
	}
	t.rows.ReuseRecord = true
	for i, name := range header {
		name = column(name)
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("line 1: no column is called %q: write some of %s", header[i], strings.Join(known, ", "))
		}
		if t.has(name) {
			return nil, fmt.Errorf("line 1: the column %q is there twice: leave one of them out", header[i])
		}
		t.at[name] = i
	}
	return t, nil
}

// wants returns an error if a column is missing.
func (t *table) wants(columns ...string) error {
	for _, c := range columns {
		if !t.has(c) {
			return fmt.Errorf("line 1: the column %s is missing: write %s", c, strings.Join(columns, ","))
		}
	}
	return nil
}

func (t *table) has(column string) bool {
	_, ok := t.at[column]
	return ok
}

// each calls row for every row of the file. All rows must have as many cells as the header. Errors
// contain the line number.
func (t *table) each(row func() error) error {
	for {
		var err error
		if t.cells, err = t.rows.Read(); errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err // the error already contains the line number
		}
		if err := row(); err != nil {
			line, _ := t.rows.FieldPos(0)
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

// cell returns the current row's value in a column; "" if the file has no such column. The string
// stays valid after the next row.
func (t *table) cell(column string) string {
	if i, ok := t.at[column]; ok {
		return strings.TrimSpace(t.cells[i])
	}
	return ""
}

// number parses the finite number in a column.
func (t *table) number(column string) (float64, error) {
	x, err := strconv.ParseFloat(t.cell(column), 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		return 0, fmt.Errorf("%s is %q: write a number", column, t.cell(column))
	}
	return x, nil
}

// tokens parses the number of tokens in a column. It returns 0 if the cell is empty.
func (t *table) tokens(column string) (int32, error) {
	text := t.cell(column)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%s is %q: write a whole number of tokens from 0 to %d", column, text, math.MaxInt32)
	}
	return int32(n), nil //nolint:gosec // it has 31 bits
}

// layouts are the accepted time formats.
var layouts = []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05", "2006-01-02T15:04:05"}

// moment parses the time in a column.
func (t *table) moment(column string) (time.Time, error) {
	for _, layout := range layouts {
		if at, err := time.Parse(layout, t.cell(column)); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s is %q: write such as 2006-01-02T15:04:05.123Z", column, t.cell(column))
}

// latest is the largest number that is accepted as a time in seconds. As a Unix time, it is
// thousands of years in the future. All Unix times in milliseconds since 1973 are larger.
const latest = 1e11

// inSeconds returns an error if the number is too large for a time in seconds.
func inSeconds(at float64) error {
	if math.Abs(at) > latest {
		return fmt.Errorf("the time is %.14g s, which is thousands of years: divide by 1,000 if it is in milliseconds", at)
	}
	return nil
}

// clock converts times to seconds since the first time, and checks that they do not decrease.
type clock struct {
	first time.Time
	last  float64
	begun bool
}

// at returns the seconds from the first time to the given time.
func (c *clock) at(moment time.Time) (float64, error) {
	if !c.begun {
		c.first = moment
	}
	return c.since(moment.Sub(c.first).Seconds())
}

// since returns a time in seconds unchanged. It returns an error if that time is before the
// previous one.
func (c *clock) since(at float64) (float64, error) {
	if err := inSeconds(at); err != nil {
		return 0, err
	}
	if c.begun && at < c.last {
		return 0, fmt.Errorf("time goes back, by %.6g s: sort the lines by it", c.last-at)
	}
	c.last, c.begun = at, true
	return at, nil
}

// ReadAzure reads a trace in the format [Azure], whose rows must be sorted by time. The first query
// arrives at time 0. Queries with a token count of 0 are included.
func ReadAzure(r io.Reader) (all []Query, err error) {
	columns := []string{timestampColumn, contextColumn, generatedColumn}
	t, err := newTable(r, columns...)
	if err != nil {
		return nil, err
	}
	if err := t.wants(columns...); err != nil {
		return nil, err
	}
	var c clock
	err = t.each(func() error {
		moment, errMoment := t.moment(timestampColumn)
		prompt, errPrompt := t.tokens(contextColumn)
		output, errOutput := t.tokens(generatedColumn)
		if err := errors.Join(errMoment, errPrompt, errOutput); err != nil {
			return err
		}
		at, err := c.at(moment)
		all = append(all, Query{At: at, Prompt: prompt, Output: output})
		return err
	})
	return all, err
}

// readPlain reads the queries of a trace in the format [CSV].
func readPlain(r io.Reader) (all []Query, err error) {
	t, err := newTable(r, atColumn, timestampColumn, modelColumn, promptColumn, outputColumn)
	if err != nil {
		return nil, err
	}
	if t.has(atColumn) == t.has(timestampColumn) {
		return nil, fmt.Errorf("line 1: requests have one time: write one of %s (seconds) and %s (such as 2006-01-02T15:04:05.123Z)",
			atColumn, timestampColumn)
	}
	var c clock
	names := map[string]string{}
	err = t.each(func() error {
		prompt, errPrompt := t.tokens(promptColumn)
		output, errOutput := t.tokens(outputColumn)
		at, errAt := 0.0, error(nil)
		if t.has(atColumn) {
			if at, errAt = t.number(atColumn); errAt == nil {
				at, errAt = c.since(at)
			}
		} else {
			var moment time.Time
			if moment, errAt = t.moment(timestampColumn); errAt == nil {
				at, errAt = c.at(moment)
			}
		}
		all = append(all, Query{at, prompt, output, same(names, t.cell(modelColumn))})
		return errors.Join(errPrompt, errOutput, errAt)
	})
	return all, err
}

// same returns a stored copy of a name, so that the name of a model is in memory only once.
func same(names map[string]string, name string) string {
	kept, ok := names[name]
	if !ok {
		kept = strings.Clone(name)
		names[kept] = kept
	}
	return kept
}
