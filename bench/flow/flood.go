package flow

import (
	"context"
	"fmt"
	"iter"

	"github.com/headgate/headgate/bench/fleet"
)

// Times of a flood in seconds: when it begins and ends, and when the last request of the others
// arrives.
const (
	floodFrom  = 60
	floodUntil = 300
	floodEnd   = 330
)

// A flood has eight tenants that use half of the capacity together, and one that sends twice the
// capacity.
const (
	tenants   = 8
	flooder   = "flooder"
	othersUse = 0.5
	floodUses = 2
)

func isOther(c fleet.Client) bool { return c.Tenant != flooder }

// floodShape describes a flood.
type floodShape struct {
	flooded   bool
	perToken  float64 // the objective that the route states, in seconds; 0 for none
	picker    int     // the extproc that gets the flood; 0 for all
	until     float64 // when all requests end, and the flood unless floodEnds is set, in seconds; 0 for the defaults
	floodEnds float64 // when the flood ends, in seconds; 0 for the default
}

// floodOf returns the requests of a flood; without the flooder if flooded is false.
func (b *bench) floodOf(seed uint64, is floodShape) iter.Seq[fleet.Request] {
	floodEnds, end := b.scaled(floodUntil), b.scaled(floodEnd)
	if is.until > 0 {
		floodEnds, end = is.until, is.until
	}
	if is.floodEnds > 0 {
		floodEnds = is.floodEnds
	}
	var all []iter.Seq[fleet.Request]
	for i := range uint32(tenants) {
		s := fleet.Stream{
			Number: i, Client: fleet.Client{Route: "chat", Tenant: fmt.Sprintf("tenant %d", i)}, Lengths: b.lengths, PerToken: is.perToken,
		}
		all = append(all, s.Arrivals(seed, othersUse*b.capacity/tenants, 0, end))
	}
	if is.flooded {
		s := fleet.Stream{
			Number: tenants, Client: fleet.Client{Route: "chat", Tenant: flooder}, Lengths: b.lengths, PerToken: is.perToken,
			Picker: is.picker,
		}
		all = append(all, s.Arrivals(seed, floodUses*b.capacity, b.scaled(floodFrom), floodEnds))
	}
	return fleet.Merge(all...)
}

// flood compares policies in a flood.
func flood(ctx context.Context, b *bench) error {
	rows := b.rows()
	all, err := b.each(ctx, rows, func(seed uint64, r row) (figures, error) {
		return b.run(seed, r, b.floodOf(seed, floodShape{flooded: !r.alone}), isOther)
	})
	if err != nil {
		return err
	}
	b.table("A tenant floods; figures of the others in the flood, tokens of all", rows, all)
	ours, alone, bound := all["fair"], all["alone"], all["victims first"]
	b.atMost("flood: TTFT p99 of the others, times alone", 1.6, ours.ratio(alone, ttft99))
	b.atMost("flood: TTFT p99 of the others, times victims first", 1.2, ours.ratio(bound, ttft99))
	if b.plot != "" {
		return b.plotFlood(b.plot)
	}
	return nil
}

// Throughput is measured late in a long flood, in seconds. When a flood begins, engines compute the
// prompts of many requests at once, and short answers end first. So the numbers of tokens per
// second become steady only after minutes. At first they favour policies that send the most
// requests to engines.
const (
	steadyFrom  = 480
	steadyUntil = 900
)

// steady simulates a long flood, and returns the figures of all requests that were sent in the
// last minutes and have ended.
func (b *bench) steady(seed uint64, r row, perToken float64) (figures, error) {
	f := b.fleet
	from, until := b.scaled(steadyFrom), b.scaled(steadyUntil)
	f.SampleInterval, f.ScrapeInterval, f.Ends = 1, r.scrapeInterval(f), until
	o, err := f.Run(seed, b.floodOf(seed, floodShape{flooded: true, perToken: perToken, until: until}), r.policy)
	if err != nil {
		return figures{}, err
	}
	is := figuresOf(o, func(r fleet.Result) bool { return r.Sent >= from && r.LastToken > 0 })
	is.tokens, is.allTokens = tokensPerSecond(o, from, until), allTokensPerSecond(o, from, until)
	return is, nil
}

// throughput compares tokens per second in a long flood. It also counts prompt tokens: without a
// gate, long answers accumulate in the engines, which then begin fewer requests per second. Their
// output tokens then belong to requests that began earlier.
func throughput(ctx context.Context, b *bench) error {
	rows := []row{
		{name: "no flow", policy: fleet.NoFlow},
		{name: "fair", policy: fleet.Fair(b.gate)},
		{name: "llm-d", policy: fleet.LLMD(false), scrape: fleet.LLMDScrapeInterval},
	}
	all, err := b.each(ctx, rows, func(seed uint64, r row) (figures, error) { return b.steady(seed, r, 0) })
	if err != nil {
		return err
	}
	b.print("A tenant floods for long; tokens of all", rows, all, steadyColumns)
	b.atLeast("throughput: prompt and output tokens per second, of no flow", 1, all["fair"].ratio(all["no flow"], allTokens))
	return nil
}

var steadyColumns = []column{
	{"per token p99", "%.0f ms", func(f figures) float64 { return 1000 * f.perToken99 }},
	{"tokens/s", "%.0f", tokens},
	{"with prompts", "%.0f", allTokens},
}
