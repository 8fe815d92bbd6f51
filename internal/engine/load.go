package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Value is a number that an engine may not report. The zero Value is unknown, not 0.
type Value struct {
	number float64
	known  bool
}

// Known returns a known Value. NaN, infinite and negative numbers become unknown.
func Known(number float64) Value {
	if math.IsNaN(number) || math.IsInf(number, 0) || number < 0 {
		return Value{}
	}
	return Value{number, true}
}

// Get returns the number and whether it is known.
func (v Value) Get() (float64, bool) { return v.number, v.known }

// Or returns the number, or instead if it is unknown.
func (v Value) Or(instead float64) float64 {
	if v.known {
		return v.number
	}
	return instead
}

// String returns the number, or "unknown".
func (v Value) String() string {
	if !v.known {
		return "unknown"
	}
	return strconv.FormatFloat(v.number, 'g', -1, 64)
}

// Load is an engine's load at one time, as it reports it.
type Load struct {
	// Kind is the kind that the caller named or that the page's names reveal. If no name is known,
	// it is unknown, and so is everything else.
	Kind Kind

	Running Value // requests in the batch
	Waiting Value // requests not in the batch: queued, or swapped out of it
	// Deferred is the part of Waiting that the batch does not delay: requests that wait for an
	// adapter slot, for KV cache from another engine or for a compiled grammar.
	Deferred Value
	KVUsage  Value // share of the KV cache in use, 0 to 1
	// KVTokens is the capacity of the KV cache in tokens.
	KVTokens Value
	// Forgets means that prefix caching is off.
	Forgets bool

	MaxAdapters Value // adapter slots on the GPU
	// Active is the sorted adapters with running or waiting requests. It shows activity, not
	// residency: an idle adapter is missing although its weights are in a slot, and so is one whose
	// waiting requests were never scheduled (vLLM 0.32.0).
	Active []string

	// Asleep means that requests would hang without an error (vLLM's sleep mode).
	Asleep bool

	// Started is the process's start time in Unix seconds. A new value means that the engine
	// restarted.
	Started Value

	// Totals are the engine's counters since its process started.
	Totals Totals
}

// Reader reads the metrics pages of one engine. It reuses its buffers and is not safe for
// concurrent use. The zero Reader is ready for use.
type Reader struct {
	lines   []byte
	settled []byte // lines that never change while the engine runs
	latest  []byte // lines of the page from which cache was parsed
	cache   Load   // load with the fields that the configuration series contains
}

// Load parses a page in Prometheus' text format. If kind is unknown, the page's names determine it.
// A page in another format is an error; a missing metric is an unknown Value.
//
// A vLLM page has 50 to 80 KB, of which eighteen families matter here. Parsing only their lines
// makes reading a page 20 times as cheap (BenchmarkLoad). Otherwise, with hundreds of endpoints and
// five pages per second each, extproc would mostly be parsing. vLLM's configuration series has so
// many labels that parsing it takes longer than the rest, so it is parsed only when it changes.
func (r *Reader) Load(page []byte, kind Kind) (Load, error) {
	var quoted bool
	if r.lines, r.settled, quoted = selectLines(page, r.lines[:0], r.settled[:0], true); quoted {
		r.lines, r.settled, _ = selectLines(page, r.lines[:0], r.settled[:0], false)
	}
	load, err := parseLoad(bytes.NewReader(r.lines), kind)
	d, _ := dialectOf(load.Kind)
	if err != nil || d.kvConfig == nil || len(r.settled) == 0 {
		return load, err
	}
	if !bytes.Equal(r.settled, r.latest) {
		config, err := parse(bytes.NewReader(r.settled))
		if err != nil {
			return Load{}, err
		}
		r.latest, r.cache = append(r.latest[:0], r.settled...), Load{}
		d.readCache(config, &r.cache)
	}
	load.KVTokens, load.Forgets = r.cache.KVTokens, r.cache.Forgets
	return load, nil
}

// selectLines appends the lines of wanted families to lines. If apart is true, it appends those
// that never change to settles instead. Quoted reports that a name is quoted, so that only the
// parser can determine its family.
func selectLines(page, lines, settles []byte, apart bool) (l, s []byte, quoted bool) {
	for len(page) > 0 {
		end := bytes.IndexByte(page, '\n') + 1
		if end == 0 {
			end = len(page)
		}
		line := page[:end]
		page = page[end:]
		switch name := nameOf(line); {
		case string(name) == quotedName:
			quoted = true
			lines = append(lines, line...)
		case apart && settled[string(name)]:
			settles = append(settles, line...)
		case wanted[string(name)]:
			lines = append(lines, line...)
		}
	}
	return lines, settles, quoted
}

// quotedName stands for a quoted name inside the braces.
const quotedName = "{"

// nameOf returns the family name of a sample or TYPE line, empty for other lines.
func nameOf(line []byte) []byte {
	line = bytes.TrimLeft(line, " \t")
	if rest, ok := bytes.CutPrefix(line, []byte("#")); ok {
		rest = bytes.TrimLeft(rest, " \t")
		rest, ok = bytes.CutPrefix(rest, []byte("TYPE"))
		if !ok {
			return nil
		}
		line = bytes.TrimLeft(rest, " \t")
	}
	if len(line) > 0 && (line[0] == '{' || line[0] == '"') {
		return []byte(quotedName)
	}
	end := 0
	for end < len(line) && inName(line[end]) { // the parser accepts name-3, too
		end++
	}
	return line[:end]
}

// inName reports whether an unquoted metric name may contain a byte.
func inName(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == ':'
}

func parse(page io.Reader) (families, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return parsed, nil
}

// parseLoad parses every line of a page.
func parseLoad(page io.Reader, kind Kind) (Load, error) {
	families, err := parse(page)
	if err != nil {
		return Load{}, err
	}
	if kind != "" {
		if d, known := dialectOf(kind); known && d.speaks(families) {
			return d.read(families), nil
		}
		return Load{}, nil
	}
	for _, d := range dialects {
		if d.speaks(families) {
			return d.read(families), nil
		}
	}
	return Load{}, nil
}

// read returns the values that the dialect selects.
func (d dialect) read(page families) Load {
	load := Load{
		Kind:    d.kind,
		Running: sum(page.first(d.running)),
		Waiting: sum(page.first(d.waiting)),
		KVUsage: largest(page.first(d.kvUsage)),
	}
	load.Deferred = sum(page.first(d.deferred))
	d.readCache(page, &load)
	if n, ok := sum(page.first(d.aside)).Get(); ok {
		load.Waiting = Known(load.Waiting.Or(0) + n)
	}
	for _, m := range page.first(d.awake) {
		// With data parallelism there is a series for each rank, and one sleeping rank is enough to
		// hang a request.
		load.Asleep = load.Asleep || number(m) == 0
	}
	load.Started = largest(page.first(started))
	load.MaxAdapters, load.Active = activity(page.first(d.adapters))
	if slots := page.first(d.slots); slots != nil {
		load.MaxAdapters = largest(slots) // each rank reports the same number
	}
	load.Totals = d.totals.read(page)
	return load
}

// readCache sets the capacity of all ranks' KV caches in tokens, and whether prefix caching is off
// in one of them.
func (d dialect) readCache(page families, load *Load) {
	if config := page.first(d.kvConfig); config != nil {
		for _, m := range config { // one series per rank; the values are in labels
			blocks, err := strconv.ParseFloat(label(m, "num_gpu_blocks"), 64)
			each, err2 := strconv.ParseFloat(label(m, "block_size"), 64)
			if n, ok := Known(blocks * each).Get(); ok && err == nil && err2 == nil {
				load.KVTokens = Known(load.KVTokens.Or(0) + n)
			}
			load.Forgets = load.Forgets || label(m, "enable_prefix_caching") == "False"
		}
		return
	}
	blocks, known := sum(page.first(d.kvBlocks)).Get()
	each, sized := largest(page.first(d.blockTokens)).Get()
	if load.KVTokens = sum(page.first(d.kvTokens)); known && sized {
		load.KVTokens = Known(blocks * each)
	}
}

// BlockTokens returns the number of tokens per KV cache block from a metrics page of any kind of
// engine.
func BlockTokens(page []byte) (Value, error) {
	families, err := parse(bytes.NewReader(page))
	if err != nil {
		return Value{}, err
	}
	for _, d := range dialects {
		for _, m := range families.first(d.kvConfig) {
			if n, err := strconv.ParseFloat(label(m, "block_size"), 64); err == nil {
				return Known(n), nil
			}
		}
		if each := largest(families.first(d.blockTokens)); each.known {
			return each, nil
		}
	}
	return Value{}, nil
}

// sum adds up the series of a family: with data parallelism there is one per rank.
func sum(series []*dto.Metric) Value {
	var total Value
	for _, m := range series {
		if n, ok := Known(number(m)).Get(); ok {
			total = Known(total.Or(0) + n)
		}
	}
	return total
}

func largest(series []*dto.Metric) Value {
	var most Value
	for _, m := range series {
		if n, ok := Known(number(m)).Get(); ok {
			most = Known(max(most.Or(0), n))
		}
	}
	return most
}

// activity parses lora_requests_info. Two of its labels are sets of adapters, and the value is the
// Unix time when they last applied. Series of older sets are never removed, so only the newest
// counts.
func activity(series []*dto.Metric) (slots Value, active []string) {
	var newest *dto.Metric
	for _, m := range series {
		if newest == nil || number(m) > number(newest) {
			newest = m
		}
	}
	if newest == nil {
		return Value{}, nil
	}
	if n, err := strconv.ParseFloat(label(newest, "max_lora"), 64); err == nil {
		slots = Known(n)
	}
	for _, key := range []string{"running_lora_adapters", "waiting_lora_adapters"} {
		for name := range strings.SplitSeq(label(newest, key), ",") {
			if name = strings.TrimSpace(name); name != "" {
				active = append(active, name)
			}
		}
	}
	slices.Sort(active)
	return slots, slices.Compact(active)
}

func number(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Untyped != nil:
		return m.Untyped.GetValue()
	}
	return math.NaN()
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

var errReport = errors.New("load report: want TEXT name=number, name=number")

// ReadReport parses the load report that an engine adds to a response: the header
// endpoint-load-metrics in TEXT form ("TEXT named_metrics.num_requests_waiting=2.0,
// named_metrics.kv_cache_usage_perc=0.4"). vLLM reports only these two. Missing values are unknown.
func ReadReport(header string) (Load, error) {
	text, ok := strings.CutPrefix(header, "TEXT ")
	if !ok {
		return Load{}, errReport
	}
	var load Load
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		n, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			return Load{}, errReport
		}
		switch strings.TrimPrefix(name, "named_metrics.") {
		case "num_requests_waiting":
			load.Waiting = Known(n)
		case "kv_cache_usage_perc":
			load.KVUsage = Known(n)
		}
	}
	return load, nil
}
