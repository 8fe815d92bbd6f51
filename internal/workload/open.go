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

// Format is a format of traces.
type Format string

// The formats of traces. [Detect] recognizes most of them.
const (
	Detect Format = "" // detects the format from the contents of the file
	// Azure is CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens, as published by
	// Azure.
	Azure Format = "azure"
	// Mooncake has lines of JSON with the fields timestamp (in ms), input_length, output_length and
	// hash_ids.
	Mooncake Format = "mooncake"
	// ServeGen is CSV without a header. The columns are: client, start of a window of
	// [ServeGenWindow], requests per second, coefficient of variation of the gaps between requests,
	// their distribution, and its two parameters. Each client is a model.
	ServeGen Format = "servegen"
	// Rates is CSV with a column rate (requests per second) and a column for the start of the
	// window with that rate: minute or seconds (numbers), or time (RFC 3339). A window ends when
	// the next window of the same model begins. The last window is as long as the one before it.
	// Optional columns are cv (the coefficient of variation of the gaps between requests), model,
	// prompt_tokens and output_tokens.
	Rates Format = "rates"
	// Prometheus is the response to a range query (/api/v1/query_range) for requests per second,
	// such as sum by (model) (rate(...)). If all series have a label that names the model (model,
	// model_name, model_id or modelId), series of the same model are added. Otherwise all series
	// are added.
	Prometheus Format = "prometheus"
	// AccessLog is the access log of Headgate's Envoys, which has lines of JSON. Requests for no
	// model and other lines are skipped. Missing token counts are set to the mean of the same
	// model.
	AccessLog Format = "access-log"
	// CSV has a column at (seconds) or timestamp (RFC 3339). Optional columns are model,
	// prompt_tokens and output_tokens.
	CSV Format = "csv"
	// Gamma is not a file but a text such as gamma:rate=100,cv=4,seconds=600. rate is requests per
	// second. cv is the coefficient of variation of the gaps between requests; the default is 1, a
	// Poisson process. The length is in seconds, or a number of requests (queries=20000). Optional
	// are the tokens per request, prompt and output.
	Gamma Format = "gamma"
)

// formats has the function that reads each file format.
var formats = map[Format]func(io.Reader, Options) (trace, error){
	Azure:      recordedBy(ReadAzure),
	Mooncake:   recordedBy(readUnhashed),
	AccessLog:  readAccessLog,
	CSV:        recordedBy(readPlain),
	ServeGen:   readClients,
	Rates:      readRates,
	Prometheus: readPrometheus,
}

// Options control how a trace is read. The zero Options read the whole trace.
type Options struct {
	Format Format // format of the file
	// CV is the coefficient of variation of the gaps between requests. It is used for Prometheus,
	// and for Rates files without a column cv. 0 means 1.
	CV float64
	// From and Seconds select a part of the trace: it begins From seconds after the start, and is
	// Seconds long. If Seconds is 0, the part is the whole rest. Its times start at 0.
	From, Seconds float64
}

// example is the part of an error that says what to write, if a file has an unknown format.
const example = "write columns such as at,model,prompt_tokens,output_tokens (at in seconds) or minute,rate (requests a second)"

// Open reads a trace. text is the name of a file, which it opens with the function open, such as
// [os.Open], or a text of the format [Gamma]. Errors contain the file and the line, and say what to
// write.
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

// Read reads a trace, which may be compressed with gzip. name is the name of the file in errors.
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
		_, _ = text.Discard(3) // skip the byte order mark
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

// headSize is how many bytes at the start of a file are used to detect its format.
const headSize = 64 << 10

// detect returns the format of a file that starts with head.
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
	row, _ := csv.NewReader(strings.NewReader(lines[0])).Read() // nil if the line is not CSV
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

// trace is the content of a file or text: recorded queries, or processes that generate queries.
type trace struct {
	recorded  []Query
	processes []process
	about     string // additional information for Source.About; may be ""
}

// source returns a Source for the trace, or for the part that the options select.
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
