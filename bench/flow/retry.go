package flow

import (
	"context"
	"fmt"
	"iter"

	"github.com/headgate/headgate/bench/fleet"
)

// A short flood, whose clients obey Retry-After. Times are in seconds.
const (
	retryUntil   = 90  // end of the flood
	retryEnd     = 180 // when the last request of the others arrives
	retryLongest = 2   // the objective of the route for the time to the first token
)

// retry judges the times at which clients that are refused are told to return.
func retry(ctx context.Context, b *bench) error {
	rows := []row{
		{name: "shed", policy: fleet.Shed(b.gate, retryLongest)},
		{name: "fair", policy: fleet.Fair(b.gate)},
	}
	all, err := b.each(ctx, rows, func(seed uint64, r row) (figures, error) {
		f := b.fleet
		o, err := f.Run(seed, b.shortFlood(seed), r.policy)
		if err != nil {
			return figures{}, err
		}
		return figuresOfReturns(o), nil
	})
	if err != nil {
		return err
	}
	b.print(fmt.Sprintf("A tenant floods for %d s, and refused clients return", retryUntil-floodFrom), rows, all, []column{
		{"refused", "%.1f %%", func(f figures) float64 { return 100 * f.refused }},
		{"admitted at first return", "%.1f %%", func(f figures) float64 { return 100 * f.extra }},
		{"wait p99 of admitted", "%.2f s", ttft99},
	})
	b.atLeast("retry: refused requests that are admitted at their first return", 0.9, all["shed"].median(func(f figures) float64 { return f.extra }))
	return nil
}

// shortFlood returns the requests of a short flood. All clients obey Retry-After.
func (b *bench) shortFlood(seed uint64) iter.Seq[fleet.Request] {
	requests := b.floodOf(seed, floodShape{flooded: true, floodEnds: b.scaled(retryUntil), until: b.scaled(retryEnd)})
	return func(yield func(fleet.Request) bool) {
		for r := range requests {
			if r.Returns = true; !yield(r) {
				return
			}
		}
	}
}

// figuresOfReturns returns the share of refused requests, the part of them that was admitted at the
// first return, and the P99 wait of admitted requests.
func figuresOfReturns(o fleet.Outcome) (is figures) {
	refused, admitted := 0, 0
	waits := make([]float64, 0, len(o.Results))
	for _, r := range o.Results {
		waits = append(waits, r.Sent-r.Held)
		switch r.Refusals {
		case 0:
		case 1:
			admitted++
			fallthrough
		default:
			refused++
		}
	}
	is.refused, is.extra = float64(refused)/float64(max(1, len(o.Results))), float64(admitted)/float64(max(1, refused))
	is.ttft99 = quantile(waits, 0.99)
	return is
}
