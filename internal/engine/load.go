package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

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
	// waiting requests were never scheduled (vLLM 0.32.0). Loads of one Reader may share it: do not
	// modify it.
	Active []string

	// Asleep means that requests would hang without an error (vLLM's sleep mode).
	Asleep bool

	// Started is the process's start time in Unix seconds. A new value means that the engine
	// restarted.
	Started Value

	// Totals are the engine's counters since its process started.
	Totals Totals
}

// parse parses every line of a page.
func parse(page []byte) (parsed families, err error) {
	defer func() {
		// The parser writes to a nil map if a quoted name of a histogram follows another family
		// (prometheus/common 0.72.1).
		if fault := recover(); fault != nil {
			parsed, err = nil, fmt.Errorf("metrics: the parser fails: %v", fault)
		}
	}()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err = parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return parsed, nil
}

// BlockTokens returns the number of tokens per KV cache block from a metrics page of any kind of
// engine.
func BlockTokens(page []byte) (Value, error) {
	families, err := parse(page)
	if err != nil {
		return Value{}, err
	}
	for _, d := range dialects {
		for _, m := range families.first(d.kvConfig) {
			if n, err := strconv.ParseFloat(label(m, "block_size"), 64); err == nil {
				return Known(n), nil
			}
		}
		if each := values(nil).largest(numbers(families.first(d.blockTokens))); each.known {
			return each, nil
		}
	}
	return Value{}, nil
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
