package survey

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Subject identifies what is measured. All rows of a file have the same subject.
type Subject struct {
	Model, Hardware string
	TensorParallel  int // 0 if unknown
	API             API
	// Request is a digest of the request body. It is "" for an LLM: its prompts are generated.
	Request string
}

// RecordName returns the name of the measurement file that belongs to the profile at output.
func RecordName(output string) string {
	return strings.TrimSuffix(output, path.Ext(output)) + ".csv"
}

// llmColumns are the columns that package fit reads, and those of the requested values. Files of
// batch profiles have batchColumns instead.
var (
	batchColumns = []string{"model", "hardware", "api", "request", "batch", "seconds"}
	llmColumns   = []string{
		"model", "hardware", "tensor_parallel", "api", "asked_tokens", "outputs",
		"prompt_tokens", "prefill_seconds", "frontend_overhead_seconds", "batch", "kv_tokens", "step_seconds",
		"prompts", "mixed_seconds", "first_seconds",
	}
)

func (s Subject) columns() []string {
	if s.API.Generates() {
		return llmColumns
	}
	return batchColumns
}

// Header returns the first line of a file.
func (s Subject) Header() []byte { return line(s.columns()) }

// Line formats a row as a line of a file, with the newline at its end.
func (s Subject) Line(r Row) []byte {
	if !s.API.Generates() {
		return line([]string{s.Model, s.Hardware, string(s.API), s.Request, strconv.Itoa(r.Batch), number(r.Seconds)})
	}
	cells := append(s.head(), strconv.Itoa(r.Asked), strconv.Itoa(r.Outputs), strconv.Itoa(r.Prompt))
	switch {
	case r.steps():
		return line(append(cells, "", "", strconv.Itoa(r.Batch), strconv.Itoa(r.KV), number(r.Seconds), "", "", ""))
	case r.Mixed():
		return line(append(cells, "", "", strconv.Itoa(r.Beside), strconv.Itoa(r.KV), number(r.Step), "", number(r.Seconds),
			number(r.FirstToken)))
	}
	several := ""
	if r.Batch > 1 {
		several = strconv.Itoa(r.Batch)
	}
	return line(append(cells, number(r.Seconds), number(r.FrontendOverhead), "", "", "", several, "", ""))
}

// head returns the first cells of each row, which identify the subject.
func (s Subject) head() []string {
	if s.API.Generates() {
		return []string{s.Model, s.Hardware, count(s.TensorParallel), string(s.API)}
	}
	return []string{s.Model, s.Hardware, string(s.API), s.Request}
}

// line formats cells as CSV.
func line(cells []string) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(cells) // writing to a buffer never fails
	w.Flush()
	return b.Bytes()
}

// number formats seconds with nanosecond precision. It formats 0 as "".
func number(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return strconv.FormatFloat(math.Round(seconds*1e9)/1e9, 'g', -1, 64)
}

// count formats a number. It formats 0 as "".
func count(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// Read parses the rows of a file. A killed program may leave an incomplete last line; whole is the
// number of bytes before that line. Read rejects a file that has another subject or another format,
// with an error that says what to do.
func (s Subject) Read(name string, text []byte) (rows []Row, whole int, err error) {
	whole = bytes.LastIndexByte(text, '\n') + 1
	if whole == 0 {
		if !bytes.HasPrefix(s.Header(), text) {
			return nil, 0, notOurs(name)
		}
		return nil, 0, nil
	}
	reader := csv.NewReader(bytes.NewReader(text[:whole]))
	reader.FieldsPerRecord = -1
	for first := true; reader.InputOffset() < int64(whole); first = false {
		cells, err := reader.Read()
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", name, err)
		}
		if first {
			if !slices.Equal(cells, s.columns()) {
				return nil, 0, notOurs(name)
			}
			continue
		}
		at, _ := reader.FieldPos(0)
		if len(cells) != len(s.columns()) {
			return nil, 0, fmt.Errorf("%s:%d has %d cells, and the first line %d: remove the line to measure it again", name, at,
				len(cells), len(s.columns()))
		}
		if head := s.head(); !slices.Equal(cells[:len(head)], head) {
			return nil, 0, fmt.Errorf("%s:%d is of %s, and this is of %s: use another file with -o, or remove that one to start again",
				name, at, s.named(cells), s.named(head))
		}
		row, err := s.row(cells[len(s.head()):])
		if err != nil {
			return nil, 0, fmt.Errorf("%s:%d: %w: remove the line to measure it again", name, at, err)
		}
		rows = append(rows, row)
	}
	return rows, whole, nil
}

func notOurs(name string) error {
	return fmt.Errorf("%s is not a measurement file of this kind: use another file with -o, or remove it", name)
}

// named formats the cells that identify the subject, for messages.
func (s Subject) named(cells []string) string {
	var words []string
	for i, column := range s.columns()[:len(s.head())] {
		if cells[i] != "" {
			words = append(words, column+" "+cells[i])
		}
	}
	return strings.Join(words, ", ")
}

// row parses the cells that follow those of the subject.
func (s Subject) row(cells []string) (r Row, err error) {
	read := func(into *int, text string) {
		if text == "" || err != nil {
			return
		}
		n, wrong := strconv.ParseUint(text, 10, 31)
		if *into = int(n); wrong != nil {
			err = fmt.Errorf("%q is not an integer", text)
		}
	}
	time := func(into *float64, text string) {
		if text == "" || err != nil {
			return
		}
		var wrong error
		if *into, wrong = strconv.ParseFloat(text, 64); wrong != nil || !(*into > 0) || math.IsInf(*into, 0) {
			err = fmt.Errorf("%q is not a time", text)
		}
	}
	if !s.API.Generates() {
		read(&r.Batch, cells[0])
		time(&r.Seconds, cells[1])
	} else {
		r.Batch = 1
		read(&r.Asked, cells[0])
		read(&r.Outputs, cells[1])
		read(&r.Prompt, cells[2])
		time(&r.Seconds, cells[3])
		time(&r.FrontendOverhead, cells[4])
		read(&r.KV, cells[6])
		if cells[9] == "" {
			read(&r.Batch, cells[5])
			time(&r.Seconds, cells[7])
			read(&r.Batch, cells[8])
		} else {
			read(&r.Beside, cells[5])
			time(&r.Step, cells[7])
			time(&r.Seconds, cells[9])
			time(&r.FirstToken, cells[10])
		}
	}
	if err == nil && (r.Seconds == 0 || r.Batch == 0) {
		err = errors.New("a row needs a batch and a time")
	}
	return r, err
}
