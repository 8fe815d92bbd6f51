package flow

import (
	"context"
	"fmt"
	"iter"

	"github.com/headgate/headgate/bench/fleet"
)

// Three bands share the load equally. Requests that arrive in the measured time count.
const (
	bandsLoad = 1.2
	topBand   = 2
)

// bands compares policies with three bands at more load than the fleet has capacity for.
func bands(ctx context.Context, b *bench) error {
	rows := []row{
		{name: "alone", policy: fleet.NoFlow, alone: true},
		{name: "no flow", policy: fleet.NoFlow},
		{name: "fair", policy: fleet.Fair(b.gate)},
		{name: "llm-d", policy: fleet.LLMD(false), scrape: fleet.LLMDScrapeInterval},
	}
	all, err := b.each(ctx, rows, func(seed uint64, r row) (figures, error) {
		var streams []iter.Seq[fleet.Request]
		for band := range int32(topBand + 1) {
			if r.alone && band != topBand {
				continue
			}
			s := fleet.Stream{
				Number: uint32(band), Lengths: b.lengths, //nolint:gosec // few
				Client: fleet.Client{Route: fmt.Sprintf("band %d", band), Tenant: "a", Band: band},
			}
			streams = append(streams, s.Arrivals(seed, bandsLoad*b.capacity/(topBand+1), 0, b.scaled(floodUntil)))
		}
		return b.run(seed, r, fleet.Merge(streams...), func(c fleet.Client) bool { return c.Band == topBand })
	})
	if err != nil {
		return err
	}
	b.table("Three bands at 120 % of the capacity; figures of the highest", rows, all)
	b.atMost("bands: TTFT p99 of the highest, times alone", 1.6, all["fair"].ratio(all["alone"], ttft99))
	b.atMost("bands: inversions", 0, all["fair"].most(func(f figures) float64 { return float64(f.inversions) }))
	return nil
}

// small returns the same bench with half as many endpoints of a smaller model.
func (b *bench) small() (*bench, error) {
	is := *b
	is.fleet.Profile, is.fleet.Endpoints = fleet.SmallProfile(), max(1, b.fleet.Endpoints/2)
	var err error
	is.capacity, err = is.fleet.Capacity(fleet.Stream{Lengths: b.lengths})
	return &is, err
}

// statedPerToken is the objective of a route, in seconds per output token.
const statedPerToken = 0.1

// stated compares policies in a flood where the route states an objective for time per token. The
// model is smaller: the larger one takes longer than the objective at half of the capacity.
func stated(ctx context.Context, large *bench) error {
	b, err := large.small()
	if err != nil {
		return err
	}
	defer func() { large.targets = b.targets }()
	rows := []row{
		{name: "no flow", policy: fleet.NoFlow},
		{name: "fair", policy: fleet.Fair(b.gate)},
	}
	all, err := b.each(ctx, rows, func(seed uint64, r row) (figures, error) {
		return b.steady(seed, r, statedPerToken)
	})
	if err != nil {
		return err
	}
	b.print(fmt.Sprintf("A tenant floods for long, and the route states 100 ms per token; figures of all, on %d endpoints of %s",
		b.fleet.Endpoints, b.fleet.Profile.Name), rows, all, steadyColumns)
	b.atMost("stated: time per token p99, of the objective", 1.2, all["fair"].median(perToken99)/statedPerToken)
	b.atLeast("stated: tokens per second, of no flow", 0.85, all["fair"].ratio(all["no flow"], tokens))
	return nil
}

// High load with common prefixes.
const (
	highLoad     = 0.9
	systems      = 128
	systemTokens = 2048
)

// load compares flow with no flow at a load that the fleet can serve.
func load(ctx context.Context, b *bench) error {
	s := fleet.Stream{Client: fleet.Client{Route: "chat", Tenant: "a"}, Lengths: b.lengths, Systems: fleet.Systems(systems, systemTokens)}
	capacity, err := b.capacityOf(s)
	if err != nil {
		return err
	}
	rows := []row{
		{name: "no flow", policy: fleet.NoFlow},
		{name: "fair", policy: fleet.Fair(b.gate)},
	}
	all, err := b.each(ctx, rows, func(seed uint64, r row) (figures, error) {
		return b.run(seed, r, s.Arrivals(seed, highLoad*capacity, 0, b.scaled(floodEnd)), func(fleet.Client) bool { return true })
	})
	if err != nil {
		return err
	}
	b.table(fmt.Sprintf("90 %% of the capacity of %.1f requests per second, with %d system prompts of %d tokens", capacity, systems, systemTokens),
		rows, all)
	hits := func(f figures) float64 { return f.hits }
	b.atMost("load: TTFT p99, times no flow", 1.1, all["fair"].ratio(all["no flow"], ttft99))
	b.atMost("load: prefix hits, points below no flow", 3, 100*(all["no flow"].median(hits)-all["fair"].median(hits)))
	return nil
}

// agentCalls is the number of parallel calls of the agent, and users the number of users.
const (
	agentCalls     = 50
	users          = 10
	agentEndpoints = 1
)

// agent compares policies where an agent and users belong to one tenant. The fleet is so small
// that the agent can fill it.
func agent(ctx context.Context, b *bench) error {
	small := *b
	capacity := b.capacity * agentEndpoints / float64(b.fleet.Endpoints)
	small.fleet.Endpoints = agentEndpoints
	rows := []row{
		{name: "alone", policy: fleet.NoFlow, alone: true},
		{name: "no flow", policy: fleet.NoFlow},
		{name: "fair", policy: fleet.Fair(b.gate)},
		{name: "first come", policy: fleet.FirstCome(b.gate)},
	}
	isUser := func(c fleet.Client) bool { return c.Program != "agent" }
	all, err := b.each(ctx, rows, func(seed uint64, r row) (figures, error) {
		var streams []iter.Seq[fleet.Request]
		for i := range uint32(users) {
			s := fleet.Stream{
				Number: i, Lengths: b.lengths, Client: fleet.Client{Route: "chat", Tenant: "a", Program: fmt.Sprintf("user %d", i)},
			}
			streams = append(streams, s.Arrivals(seed, othersUse*capacity/users, 0, b.scaled(2*floodUntil)))
		}
		of := small
		if !r.alone {
			s := fleet.Stream{Number: users, Lengths: b.lengths, Client: fleet.Client{Route: "chat", Tenant: "a", Program: "agent"}}
			of.fleet.Closed = []fleet.Closed{{Clients: agentCalls, Until: b.scaled(3 * floodUntil), Requests: s.Endless(seed)}}
		}
		return of.runFor(seed, r, fleet.Merge(streams...), isUser, b.scaled(floodFrom), b.scaled(2*floodUntil))
	})
	if err != nil {
		return err
	}
	b.table(fmt.Sprintf("An agent with %d parallel calls and %d users of one tenant, on an endpoint; figures of the users", agentCalls, users),
		rows, all)
	b.atMost("agent: TTFT p99 of the users, times alone", 1.6, all["fair"].ratio(all["alone"], ttft99))
	return nil
}
