package engine

import (
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// selection is the series of a page that make up a Load. Which series these are depends on names,
// labels and types, and not on values. Each float64 is a value of the page, or stands for it as the
// index of its line: see values.
type selection struct {
	kind Kind

	running, waiting, aside, deferred, kvUsage, awake, started, slots []float64

	cache    kvCache
	adapters adapters
	totals   totalsSelection
}

// kvCache selects the size of the KV cache. In vLLM's configuration it is in labels.
type kvCache struct {
	tokens  Value // from the configuration
	forgets bool

	kvTokens, kvBlocks, blockTokens []float64
}

// adapters is what vLLM's table of adapters reports. It is resolved, since it depends on which line
// has the highest value.
type adapters struct {
	slots  Value
	active []string
}

// values are the values on which a selection is based, by index. The nil values mean that the
// selection has the values themselves.
type values []float64

func (v values) at(n float64) float64 {
	if v == nil {
		return n
	}
	return v[int(n)]
}

// selects parses a page in Prometheus' text format, and selects the series that count. If kind is
// unknown, the page's names determine it. Config has the lines of vLLM's configuration if they are
// not in page; it is ignored for other engines.
func selects(page, config []byte, kind Kind) (selection, families, error) {
	found, err := parse(page)
	if err != nil {
		return selection{}, nil, err
	}
	d, known := found.dialect(kind)
	if !known {
		return selection{}, found, nil
	}
	s := d.selects(found)
	if d.kvConfig != nil && len(config) > 0 {
		configured, err := parse(config)
		if err != nil {
			return selection{}, nil, err
		}
		s.cache = d.cache(configured)
	}
	return s, found, nil
}

// dialect returns the stated dialect, or else the first one that the page speaks. It is not known
// if the page has no series of it.
func (f families) dialect(kind Kind) (d dialect, known bool) {
	if kind != "" {
		d, known = dialectOf(kind)
		return d, known && d.speaks(f)
	}
	for _, d := range dialects {
		if d.speaks(f) {
			return d, true
		}
	}
	return dialect{}, false
}

// selects returns the series of a page that the dialect selects.
func (d dialect) selects(page families) selection {
	first := func(selectors []selector) []float64 { return numbers(page.first(selectors)) }
	return selection{
		kind:    d.kind,
		running: first(d.running), waiting: first(d.waiting), aside: first(d.aside), deferred: first(d.deferred),
		kvUsage: first(d.kvUsage), awake: first(d.awake), started: first(started), slots: first(d.slots),
		cache: d.cache(page), adapters: activity(page.first(d.adapters)), totals: d.totals.selects(page),
	}
}

// cache selects the capacity of all ranks' KV caches, and reads from the configuration whether
// prefix caching is off in one of them.
func (d dialect) cache(page families) (c kvCache) {
	if config := page.first(d.kvConfig); config != nil {
		for _, m := range config { // one series per rank; the values are in labels
			blocks, err := strconv.ParseFloat(label(m, "num_gpu_blocks"), 64)
			each, err2 := strconv.ParseFloat(label(m, "block_size"), 64)
			if n, ok := Known(blocks * each).Get(); ok && err == nil && err2 == nil {
				c.tokens = Known(c.tokens.Or(0) + n)
			}
			c.forgets = c.forgets || label(m, "enable_prefix_caching") == "False"
		}
		return c
	}
	c.kvTokens = numbers(page.first(d.kvTokens))
	c.kvBlocks, c.blockTokens = numbers(page.first(d.kvBlocks)), numbers(page.first(d.blockTokens))
	return c
}

// activity reads lora_requests_info. Two of its labels are sets of adapters, and the value is the
// Unix time when they last applied. Series of older sets are never removed, so only the newest
// counts.
func activity(series []*dto.Metric) (a adapters) {
	var newest *dto.Metric
	for _, m := range series {
		if newest == nil || number(m) > number(newest) {
			newest = m
		}
	}
	if newest == nil {
		return adapters{}
	}
	if n, err := strconv.ParseFloat(label(newest, "max_lora"), 64); err == nil {
		a.slots = Known(n)
	}
	for _, key := range []string{"running_lora_adapters", "waiting_lora_adapters"} {
		for name := range strings.SplitSeq(label(newest, key), ",") {
			if name = strings.TrimSpace(name); name != "" {
				a.active = append(a.active, name)
			}
		}
	}
	slices.Sort(a.active)
	a.active = slices.Compact(a.active)
	return a
}

// load returns the Load of the selected series.
func (s *selection) load(v values) Load {
	load := Load{
		Kind:    s.kind,
		Running: v.sum(s.running), Waiting: v.sum(s.waiting), Deferred: v.sum(s.deferred), KVUsage: v.largest(s.kvUsage),
		KVTokens: s.cache.tokens, Forgets: s.cache.forgets, MaxAdapters: s.adapters.slots, Active: s.adapters.active,
		Started: v.largest(s.started), Totals: s.totals.load(v),
	}
	if n, ok := v.sum(s.aside).Get(); ok {
		load.Waiting = Known(load.Waiting.Or(0) + n)
	}
	if tokens := v.sum(s.cache.kvTokens); tokens.known {
		load.KVTokens = tokens
	}
	blocks, known := v.sum(s.cache.kvBlocks).Get()
	if each, sized := v.largest(s.cache.blockTokens).Get(); known && sized {
		load.KVTokens = Known(blocks * each)
	}
	for _, n := range s.awake {
		// With data parallelism there is a series for each rank, and one sleeping rank is enough to
		// hang a request.
		load.Asleep = load.Asleep || v.at(n) == 0
	}
	if len(s.slots) > 0 {
		load.MaxAdapters = v.largest(s.slots) // each rank reports the same number
	}
	return load
}

// sum adds up the series of a family: with data parallelism there is one per rank.
func (v values) sum(series []float64) Value {
	var total Value
	for _, n := range series {
		if n, ok := Known(v.at(n)).Get(); ok {
			total = Known(total.Or(0) + n)
		}
	}
	return total
}

func (v values) largest(series []float64) Value {
	var most Value
	for _, n := range series {
		if n, ok := Known(v.at(n)).Get(); ok {
			most = Known(max(most.Or(0), n))
		}
	}
	return most
}

// total adds up series if all are known: a sum without one would look like a restarted engine.
func (v values) total(series []float64) (all Value) {
	for i, n := range series {
		n := Known(v.at(n))
		if i > 0 {
			n = n.plus(all)
		}
		all = n
	}
	return all
}

// numbers returns the values of series.
func numbers(series []*dto.Metric) []float64 {
	if len(series) == 0 {
		return nil
	}
	all := make([]float64, len(series))
	for i, m := range series {
		all[i] = number(m)
	}
	return all
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
