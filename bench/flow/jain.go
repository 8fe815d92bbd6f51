package flow

import (
	"context"
	"math"

	"github.com/headgate/headgate/bench/fleet"
)

// Backlogged tenants have so many clients that some of their requests always wait.
const (
	jainMinute  = 60  // this and all other times in seconds
	jainFirst   = 10  // requests that are sent until then are a tenant's first ones
	jainLatest  = 300 // figures begin then even if first answers have not ended
	jainUntil   = 540
	jainClients = 256 // of each tenant at each endpoint
)

// backlogged are tenants with requests of different shapes.
var backlogged = []struct {
	tenant  string
	lengths func(b *bench) fleet.Lengths
}{
	{"chat", func(b *bench) fleet.Lengths { return b.lengths }},
	{"long prompt", func(*bench) fleet.Lengths {
		return fleet.Lengths{{Prompt: 4000, Output: 50}, {Prompt: 6000, Output: 50}}
	}},
	{"long answer", func(*bench) fleet.Lengths {
		return fleet.Lengths{{Prompt: 150, Output: 400}, {Prompt: 250, Output: 600}}
	}},
}

// jain compares what backlogged tenants get, in engine seconds.
func jain(ctx context.Context, b *bench) error {
	rows := []row{
		{name: "no flow", policy: fleet.NoFlow},
		{name: "fair", policy: fleet.Fair(b.gate)},
		{name: "first come", policy: fleet.FirstCome(b.gate)},
		{name: "VTC", policy: fleet.VTC(b.gate)},
		{name: "llm-d", policy: fleet.LLMD(false), scrape: fleet.LLMDScrapeInterval},
		{name: "llm-d round robin", policy: fleet.LLMD(true), scrape: fleet.LLMDScrapeInterval},
	}
	all, err := b.each(ctx, rows, b.jainRow)
	if err != nil {
		return err
	}
	b.print("Backlogged tenants: chat, long prompts, long answers", rows, all, []column{
		{"lowest Jain in a minute", "%.3f", func(f figures) float64 { return f.jain }},
		{"measured from", "%.0f s", func(f figures) float64 { return f.extra }},
		{"tokens/s", "%.0f", tokens},
	})
	b.atLeast("jain: lowest index of engine seconds in a minute", 0.98, all["fair"].median(func(f figures) float64 { return f.jain }))
	return nil
}

// jainRow simulates backlogged tenants under a policy.
func (b *bench) jainRow(seed uint64, r row) (figures, error) {
	f := b.fleet
	f.SampleInterval, f.ScrapeInterval, f.Ends = 1, r.scrapeInterval(f), b.scaled(jainUntil)
	for i, t := range backlogged {
		client := fleet.Client{Route: "r", Tenant: t.tenant}
		s := fleet.Stream{Number: uint32(i), Client: client, Lengths: t.lengths(b)} //nolint:gosec // few
		f.Closed = append(f.Closed, fleet.Closed{Clients: jainClients * f.Endpoints, Until: f.Ends, Requests: s.Endless(seed)})
	}
	o, err := f.Run(seed, func(func(fleet.Request) bool) {}, r.policy)
	if err != nil {
		return figures{}, err
	}
	from := min(firstAnswersEnded(o, b.scaled(jainFirst)), b.scaled(jainLatest))
	is := figures{jain: lowestJain(o, from, b.scaled(jainMinute), b.scaled(jainUntil)), extra: from}
	is.tokens = tokensPerSecond(o, from, b.scaled(jainUntil))
	return is, nil
}

// firstAnswersEnded returns the time at which all answers have ended that were sent in the first
// seconds.
func firstAnswersEnded(o fleet.Outcome, first float64) (at float64) {
	for _, r := range o.Results {
		if r.Sent < first && r.LastToken > 0 && !math.IsInf(r.LastToken, 1) {
			at = max(at, r.LastToken)
		}
	}
	return at
}

// lowestJain returns the lowest index of Jain of the tenants' engine seconds over intervals from a
// time on; NaN if there is no whole interval.
func lowestJain(o fleet.Outcome, from, interval, until float64) float64 {
	lowest := math.NaN()
	for ; from+interval <= until; from += interval {
		a, b := sampleAt(o, from), sampleAt(o, from+interval)
		var sum, squares float64
		for tenant, is := range b.Seconds {
			got := is - a.Seconds[tenant]
			sum, squares = sum+got, squares+got*got
		}
		index := sum * sum / (squares * float64(len(b.Seconds)))
		if math.IsNaN(lowest) || index < lowest {
			lowest = index
		}
	}
	return lowest
}
