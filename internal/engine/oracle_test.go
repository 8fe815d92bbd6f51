package engine

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// ParseWhole parses every line of a page.
func ParseWhole(page []byte, kind Kind) (Load, error) { return parseLoad(page, kind) }

// PlainReader is the oracle for Reader: it selects lines by their whole name and parses them with
// expfmt on each page. Only vLLM's configuration is parsed when it changes.
type PlainReader struct {
	lines   []byte
	settled []byte // lines that never change while the engine runs
	latest  []byte // lines of the page from which cache was parsed
	cache   Load   // load with the fields that the configuration series contains
}

// Load parses a page as Reader.Load does.
func (r *PlainReader) Load(page []byte, kind Kind) (Load, error) {
	var quoted bool
	if r.lines, r.settled, quoted = plainLines(page, r.lines[:0], r.settled[:0], true); quoted {
		r.lines, r.settled, _ = plainLines(page, r.lines[:0], r.settled[:0], false)
	}
	load, err := parseLoad(r.lines, kind)
	d, _ := dialectOf(load.Kind)
	if err != nil || d.kvConfig == nil || len(r.settled) == 0 {
		return load, err
	}
	if !bytes.Equal(r.settled, r.latest) {
		config, err := parse(r.settled)
		if err != nil {
			return Load{}, err
		}
		r.latest, r.cache = append(r.latest[:0], r.settled...), Load{}
		plainCache(d, config, &r.cache)
	}
	load.KVTokens, load.Forgets = r.cache.KVTokens, r.cache.Forgets
	return load, nil
}

// plainLines appends the lines of wanted families to lines. If apart is true, it appends those
// that never change to settles instead. Quoted reports that a name is quoted, so that only the
// parser can determine its family.
func plainLines(page, lines, settles []byte, apart bool) (l, s []byte, quoted bool) {
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

// parseLoad parses every line of a page.
func parseLoad(page []byte, kind Kind) (Load, error) {
	families, err := parse(page)
	if err != nil {
		return Load{}, err
	}
	if kind != "" {
		if d, known := dialectOf(kind); known && d.speaks(families) {
			return plainLoad(d, families), nil
		}
		return Load{}, nil
	}
	for _, d := range dialects {
		if d.speaks(families) {
			return plainLoad(d, families), nil
		}
	}
	return Load{}, nil
}

// plainLoad returns the values that the dialect selects.
func plainLoad(d dialect, page families) Load {
	load := Load{
		Kind:    d.kind,
		Running: sum(page.first(d.running)),
		Waiting: sum(page.first(d.waiting)),
		KVUsage: largest(page.first(d.kvUsage)),
	}
	load.Deferred = sum(page.first(d.deferred))
	plainCache(d, page, &load)
	if n, ok := sum(page.first(d.aside)).Get(); ok {
		load.Waiting = Known(load.Waiting.Or(0) + n)
	}
	for _, m := range page.first(d.awake) {
		// With data parallelism there is a series for each rank, and one sleeping rank is enough to
		// hang a request.
		load.Asleep = load.Asleep || number(m) == 0
	}
	load.Started = largest(page.first(started))
	load.MaxAdapters, load.Active = plainActivity(page.first(d.adapters))
	if slots := page.first(d.slots); slots != nil {
		load.MaxAdapters = largest(slots) // each rank reports the same number
	}
	load.Totals = plainTotals(d.totals, page)
	return load
}

// plainCache sets the capacity of all ranks' KV caches in tokens, and whether prefix caching is off
// in one of them.
func plainCache(d dialect, page families, load *Load) {
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

// plainActivity parses lora_requests_info. Only the newest series counts.
func plainActivity(series []*dto.Metric) (slots Value, active []string) {
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

// plainTotals returns the selected values of a page.
func plainTotals(c counters, page families) Totals {
	return Totals{
		Queue: timed(page, c.queue), Prefill: timed(page, c.prefill), Decode: timed(page, c.decode),
		FirstToken: timed(page, c.firstToken), InterToken: timed(page, c.interToken),
		PromptTokens: total(page.first(c.prompt)), CachedTokens: total(page.first(c.cached)),
		GeneratedTokens: total(page.first(c.generated)),
		PrefillTokens:   timed(page, c.prefillTokens).Seconds, Steps: steps(page, c.steps),
	}
}

// timed adds up the histograms of the first selector found on the page. If a series lacks a count
// or a sum, the result is unknown. Series with only buckets do not count, since buckets are not
// read.
func timed(f families, selectors []selector) (all Timed) {
	for _, s := range selectors {
		if f[s.name].GetType() != dto.MetricType_HISTOGRAM {
			continue
		}
		var series int
		for _, m := range f[s.name].GetMetric() {
			h := m.GetHistogram()
			if h != nil && h.SampleSum == nil && h.SampleCount == nil {
				continue
			}
			if h == nil || h.SampleSum == nil || h.SampleCount == nil {
				return Timed{}
			}
			count, seconds := Known(float64(h.GetSampleCount())), Known(h.GetSampleSum())
			if series++; series > 1 {
				count, seconds = count.plus(all.Count), seconds.plus(all.Seconds)
			}
			all = Timed{count, seconds}
		}
		if series > 0 {
			return all
		}
	}
	return Timed{}
}

// steps adds up the buckets of the first selector found on the page. A power of two without a
// bucket has the value of the next larger bucket.
func steps(f families, selectors []selector) (all Steps) {
	for _, s := range selectors {
		if all.Count = timed(f, []selector{s}).Count; !all.Count.known {
			continue
		}
		for _, m := range f[s.name].GetMetric() {
			h := m.GetHistogram()
			is := [len(all.UpTo)]float64{}
			for i := range is {
				is[i] = -1
			}
			for _, b := range h.GetBucket() {
				if half, power := math.Frexp(b.GetUpperBound()); half == 0.5 && power >= 1 && power <= len(is) {
					is[power-1] = float64(b.GetCumulativeCount())
				}
			}
			next := float64(h.GetSampleCount())
			for i := len(is) - 1; i >= 0; i-- {
				if is[i] >= 0 {
					next = is[i]
				}
				all.UpTo[i] += next
			}
		}
		return all
	}
	return Steps{}
}

// total adds up series if all are known: a sum without one would look like a restarted engine.
func total(series []*dto.Metric) (all Value) {
	for i, m := range series {
		n := Known(number(m))
		if i > 0 {
			n = n.plus(all)
		}
		all = n
	}
	return all
}
