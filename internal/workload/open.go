package workload

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Format is a file format of a trace.
type Format string

// The formats. [Detect] recognizes most of them.
const (
	Detect Format = "" // by the contents of the file
	// Azure is CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens, as Azure publishes it.
	Azure Format = "azure"
	// Mooncake is lines of JSON with timestamp (ms), input_length, output_length and hash_ids.
	Mooncake Format = "mooncake"
	// ServeGen is CSV without a header: client, start of a window of [ServeGenWindow], requests per
	// second, coefficient of variation of the gaps between them, their distribution, and its two
	// parameters. Each client is a model.
	ServeGen Format = "servegen"
	// Rates is CSV with the column rate, in requests per second, and one of minute, seconds
	// (numbers) and time (RFC 3339), which is when a window with that rate begins. A window ends
	// when the next one of the same model begins; the last one is as long as the one before it.
	// Optional columns are cv, the coefficient of variation of the gaps, model, prompt_tokens and
	// output_tokens.
	Rates Format = "rates"
	// Prometheus is the response to a range query (/api/v1/query_range) for requests per second,
	// such as sum by (model) (rate(...)). Series are summed by the label of the model, one of
	// model, model_name, model_id and modelId, if all have it, otherwise all together.
	Prometheus Format = "prometheus"
	// AccessLog is the log of Headgate's Envoys: lines of JSON. Lines of requests for no model and
	// unrelated lines are skipped. Missing token counts are the mean of the same model.
	AccessLog Format = "access-log"
	// CSV has the column at (seconds) or timestamp (RFC 3339), and optionally model, prompt_tokens
	// and output_tokens.
	CSV Format = "csv"
	// Gamma is not a file but a text such as gamma:rate=100,cv=4,seconds=600: requests per second,
	// the coefficient of variation of the gaps (by default 1, a Poisson process), and the length in
	// seconds or the number of requests (queries=20000). Optional are prompt and output, in tokens.
	Gamma Format = "gamma"
)

// formats are the readers of files.
var formats = map[Format]func(io.Reader, Options) (trace, error){
	Azure:      recordedBy(ReadAzure),
	Mooncake:   recordedBy(readUnhashed),
	AccessLog:  readAccessLog,
	CSV:        recordedBy(readPlain),
	ServeGen:   readClients,
	Rates:      readRates,
	Prometheus: readPrometheus,
}

// Options configure how a trace is read. The zero value reads all of it.
type Options struct {
	Format Format // of a file
	// CV is the coefficient of variation of the gaps for Prometheus and for a Rates file without
	// that column; 0 means 1.
	CV float64
	// From and Seconds select a part of the trace: Seconds long, starting From seconds after the
	// beginning. Times start at 0 again. Seconds of 0 selects the whole rest.
	From, Seconds float64
}

// example is part of the error for a file of no known format.
const example = "write columns such as at,model,prompt_tokens,output_tokens (at in seconds) or minute,rate (requests a second)"

// Open opens a trace: a file, opened by open, such as [os.Open], or a text of [Gamma]. Errors name
// the file and the line, and say what to write.
func Open[F io.ReadCloser](open func(name string) (F, error), text string, o Options) (*Source, error) {
	if spec, ok := strings.CutPrefix(text, string(Gamma)+":"); ok && (o.Format == Detect || o.Format == Gamma) {
		t, err := parseGamma(spec)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		return t.source(text, Gamma, o)
	}
	f, err := open(text)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := Read(text, f, o)
	if s != nil {
		s.Name = filepath.Base(text)
	}
	return s, err
}

// Read reads a trace, which may be compressed with gzip. Errors call the file name.
func Read(name string, r io.Reader, o Options) (*Source, error) {
	text := bufio.NewReaderSize(r, headSize)
	if head, _ := text.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		text = bufio.NewReaderSize(unzipped, headSize)
	}
	if bom, _ := text.Peek(3); string(bom) == "\ufeff" {
		_, _ = text.Discard(3) // already peeked
	}
	head, err := text.Peek(headSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(bytes.TrimSpace(head)) == 0 {
		return nil, fmt.Errorf("%s is empty: %s", name, example)
	}
	if o.Format == Detect {
		if o.Format, err = detect(string(head)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	read, ok := formats[o.Format]
	if !ok {
		return nil, fmt.Errorf("%s: no file has the format %q: use one of %s", name, o.Format, known())
	}
	t, err := read(text, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t.source(name, o.Format, o)
}

// known lists the file formats.
func known() string {
	var all []string
	for f := range formats {
		all = append(all, string(f))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// headSize is how many bytes of a file are used to detect its format.
const headSize = 64 << 10

// detect returns the format of a file with this beginning.
func detect(head string) (Format, error) {
	lines := strings.Split(head, "\n")
	switch {
	case strings.HasPrefix(strings.TrimSpace(head), "{") && strings.Contains(lines[0], `"input_length"`):
		return Mooncake, nil
	case strings.Contains(head, `"resultType"`) || strings.Contains(head, `"errorType"`):
		return Prometheus, nil
	}
	for _, line := range lines {
		if strings.HasPrefix(line, "{") && strings.Contains(line, `"time":"`) {
			return AccessLog, nil
		}
	}
	row, _ := csv.NewReader(strings.NewReader(lines[0])).Read() // nil is no header
	for i := range row {
		row[i] = column(row[i])
	}
	has := func(name string) bool { return slices.Contains(row, name) }
	switch {
	case has("contexttokens"):
		return Azure, nil
	case has(rateColumn):
		return Rates, nil
	case has(atColumn) || has(timestampColumn):
		return CSV, nil
	case len(row) == 7 && isNumber(row[1]) && isNumber(row[2]):
		return ServeGen, nil
	}
	return Detect, fmt.Errorf("line 1: the format is unknown: %s, or say which of %s it is", example, known())
}

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}

// trace is the contents of a file or text: queries, or processes that generate them.
type trace struct {
	recorded  []Query
	processes []process
	about     string // further information for people, may be empty
}

// source makes a Source of a trace, or of the selected part.
func (t trace) source(name string, f Format, o Options) (*Source, error) {
	if !(o.From >= 0) || !(o.Seconds >= 0) || math.IsInf(o.From, 0) || math.IsInf(o.Seconds, 0) {
		return nil, fmt.Errorf("%s: a part of a trace begins after its beginning and has a length: %g s for %g s is none", name, o.From,
			o.Seconds)
	}
	length := cmp.Or(o.Seconds, math.Inf(1))
	of := t.generated
	if t.processes == nil {
		of = t.kept
	}
	s, err := of(o.From, length)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.Name, s.About = name, string(f)+": "+s.About
	if t.about != "" {
		s.About += "; " + t.about
	}
	return s, nil
}

// positive reports whether a number is finite and above 0.
func positive(x float64) bool { return x > 0 && !math.IsInf(x, 1) }
