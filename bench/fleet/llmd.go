package fleet

import "math"

// llmd is the flow control of the leading endpoint picker, which is off by default, before its
// scorers ([Scored]). From the code of llm-d's router at 520af478 (pkg/epp/flowcontrol and its
// plugins), with its defaults. Requests wait while the pool is saturated: while the mean over all
// endpoints of max(waiting requests / 5, KV cache usage / 0.8) is at least 1. One request goes
// when one arrives, and otherwise one per millisecond. It counts no requests of its own, so that
// all requests between two scrapes see the same numbers. Metrics older than 200 ms count as
// saturated; scrapes here are never that late.
type llmd struct {
	*scored
	flows   flows
	last    float64 // when the last request went, in seconds
	arrived bool    // a request has arrived since
}

// Defaults of llm-d's saturation detector, and the interval of its dispatch cycles in seconds.
const (
	llmdQueue = 5
	llmdKV    = 0.8
	llmdCycle = 0.001
)

// LLMD is llm-d's picker with flow control. Its default fairness policy is global strict: the
// request that has waited longest goes first. The alternative is round robin among the tenants.
func LLMD(roundRobin bool) Policy {
	return func(f Fleet, seed uint64) (Picker, error) {
		p, err := Scored(2, 2, 3, 0)(f, seed)
		if err != nil {
			return nil, err
		}
		return &llmd{scored: p.(*scored), flows: flows{strict: !roundRobin}}, nil
	}
}

// LLMDScrapeInterval is llm-d's scrape interval in seconds.
const LLMDScrapeInterval = 0.05

// saturated reports whether requests must wait.
func (p *llmd) saturated() bool {
	total := 0.0
	for i := range p.at {
		k := &p.at[i]
		total += max(k.waiting/llmdQueue, k.kv/llmdKV)
	}
	return total >= float64(len(p.at))
}

func (p *llmd) Hold(_ float64, r *Request) []Refusal {
	p.flows.join(r)
	p.arrived = true
	return nil
}

func (p *llmd) Next(now float64) (*Request, int) {
	r := p.flows.next()
	if r == nil || p.saturated() || !p.arrived && now < p.last+llmdCycle {
		return nil, 0
	}
	p.last, p.arrived = now, false
	p.flows.take(sent{})
	return r, p.Pick(now, r)
}

func (p *llmd) Wake(now float64) float64 {
	if p.flows.len() == 0 || p.saturated() {
		return math.Inf(1) // until the next scrape
	}
	return max(now, p.last+llmdCycle)
}
