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
	// filling is the time in which engines fill after a flood begins. They then compute more
	// prompts and fewer output tokens than later, so that output tokens are counted after it.
	filling = 120
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

// floodOf returns the requests of a flood; without the flooder if flooded is false.
func (b *bench) floodOf(seed uint64, flooded bool, perToken float64) iter.Seq[fleet.Request] {
	var all []iter.Seq[fleet.Request]
	for i := range tenants {
		s := fleet.Stream{
			Number: uint32(i), Client: fleet.Client{Route: "chat", Tenant: fmt.Sprintf("tenant %d", i)}, Lengths: b.lengths, PerToken: perToken,
		}
		all = append(all, s.Arrivals(seed, othersUse*b.capacity/tenants, 0, b.scaled(floodEnd)))
	}
	if flooded {
		s := fleet.Stream{Number: tenants, Client: fleet.Client{Route: "chat", Tenant: flooder}, Lengths: b.lengths, PerToken: perToken}
		all = append(all, s.Arrivals(seed, floodUses*b.capacity, b.scaled(floodFrom), b.scaled(floodUntil)))
	}
	return fleet.Merge(all...)
}

// flood compares policies in a flood.
func flood(ctx context.Context, b *bench) error {
	rows := b.rows()
	all, err := b.each(ctx, rows, func(seed uint64, r row) (figures, error) {
		return b.run(seed, r, b.floodOf(seed, !r.alone, 0), isOther)
	})
	if err != nil {
		return err
	}
	b.table("A tenant floods; figures of the others in the flood, tokens of all", rows, all)
	ours, alone, bound, none := all["fair"], all["alone"], all["victims first"], all["no flow"]
	b.atMost("flood: TTFT p99 of the others, times alone", 1.6, ours.ratio(alone, ttft99))
	b.atMost("flood: TTFT p99 of the others, times victims first", 1.2, ours.ratio(bound, ttft99))
	b.atLeast("flood: tokens per second, of no flow", 1, ours.ratio(none, tokens))
	return nil
}
