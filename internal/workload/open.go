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

// Format is how a file has requests.
type Format string

// Formats. Those that [Detect] finds by themselves need no name.
const (
	Detect Format = "" // by what is in the file
	// Azure is CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens, as Azure publishes it.
	Azure Format = "azure"
	// Mooncake is lines of JSON with timestamp (ms), input_length, output_length and hash_ids.
	Mooncake Format = "mooncake"
	// ServeGen is CSV without a header: client, start of a window of [ServeGenWindow], requests a second, coefficient of variation of the gaps
	// between them, their family, and its two parameters. Each client is a model.
	ServeGen Format = "servegen"
	// Rates is CSV with the columns rate, in requests a second, and one of minute, seconds (numbers) and time (RFC 3339), which is when a
	// window of that rate begins. It ends where the next one of the same model begins; the last is as long as the one before it. There
	// may be cv, the coefficient of variation of the gaps, and model, prompt_tokens and output_tokens.
	Rates Format = "rates"
	// Prometheus is the answer of Prometheus to a range query (/api/v1/query_range) for requests a second, such as
	// sum by (model) (rate(...)). Series are summed by the label that names a model, one of model, model_name, model_id and modelId,
	// where all have it, and otherwise all together.
	Prometheus Format = "prometheus"
	// AccessLog is the log of Headgate's Envoys: lines of JSON. Lines of requests for no model are passed over, and lines of something else. Tokens that a
	// line does not say are those of others for its model, in the mean.
	AccessLog Format = "access-log"
	// CSV has the columns at (seconds) or timestamp (RFC 3339), and may have model, prompt_tokens and output_tokens.
	CSV Format = "csv"
	// Gamma is no file but a text such as gamma:rate=100,cv=4,seconds=600: requests a second, the coefficient of variation of the gaps
	// (1 is Poisson's, and the default), and the length in seconds or the number of requests (queries=20000). There may be prompt and
	// output, in tokens.
	Gamma Format = "gamma"
)

// formats are those of files.
var formats = map[Format]func(io.Reader, Options) (trace, error){
	Azure:      recordedBy(ReadAzure),
	Mooncake:   recordedBy(readUnhashed),
	AccessLog:  readAccessLog,
	CSV:        recordedBy(readPlain),
	ServeGen:   readClients,
	Rates:      readRates,
	Prometheus: readPrometheus,
}

// Options say how to read a trace. The zero value reads all of it.
type Options struct {
	Format Format // of a file
	// CV is the coefficient of variation of the gaps between requests of a Rates file without a column for it, and of Prometheus; 0 is 1.
	CV float64
	// From and Seconds take a part of the trace: what comes in so many Seconds, from so many seconds after its beginning on. Times of a
	// part count from its beginning. Seconds of 0 take all that is left.
	From, Seconds float64
}

// example is written where a file is of no format.
const example = "write columns such as at,model,prompt_tokens,output_tokens (at in seconds) or minute,rate (requests a second)"

// Open opens a trace, which is a file that open opens, such as [os.Open], or a text of [Gamma]. Errors name the file and the line, and say what to
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

// Read reads a trace, perhaps compressed by gzip, of a file that errors call name.
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
		_, _ = text.Discard(3) // they are there
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

// known lists the formats of files.
func known() string {
	var all []string
	for f := range formats {
		all = append(all, string(f))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// headSize is how much of a file says which format it has, in bytes.
const headSize = 64 << 10

// detect says which format a file has that begins so.
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

// trace is what a file or a text has: queries, or processes by which they are drawn.
type trace struct {
	recorded  []Query
	processes []process
	about     string // what else there is to say, for people; it may be empty
}

// source makes a source of a trace, or of the part that is wanted.
func (t trace) source(name string, f Format, o Options) (*Source, error) {
	if !(o.From >= 0) || !(o.Seconds >= 0) || math.IsInf(o.From, 0) || math.IsInf(o.Seconds, 0) {
		return nil, fmt.Errorf("%s: a part of a trace begins after its beginning and has a length: %g s for %g s is none", name, o.From, o.Seconds)
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

// positive says whether a number is finite and above 0.
func positive(x float64) bool { return x > 0 && !math.IsInf(x, 1) }
