package flow

import (
	"context"
	"fmt"

	"github.com/headgate/headgate/bench/fleet"
)

// processes is the number of extprocs that share the fleet.
const processes = 3

// several compares a flood through one of three extprocs, and through all of them, with the others
// spread over all.
func several(ctx context.Context, b *bench) error {
	three := *b
	three.fleet.Pickers, three.targets = processes, nil
	alone, one, all3 := "alone", "flood through one", "flood through all"
	rows := []row{
		{name: alone, policy: fleet.NoFlow, alone: true},
		{name: one, policy: fleet.Fair(b.gate), picker: 1},
		{name: all3, policy: fleet.Fair(b.gate)},
	}
	all, err := b.each(ctx, rows, func(seed uint64, r row) (figures, error) {
		return three.run(seed, r, b.floodOf(seed, floodShape{flooded: !r.alone, picker: r.picker}), isOther)
	})
	if err != nil {
		return err
	}
	unused := func(f figures) float64 { return f.unused }
	b.print(fmt.Sprintf("A tenant floods, and %d extprocs share the fleet; figures of the others", processes), rows, all, []column{
		{"TTFT p50", "%.2f s", func(f figures) float64 { return f.ttft50 }},
		{"p99", "%.2f s", ttft99},
		{"tokens/s", "%.0f", tokens},
		{"room unused", "%.3f s", unused},
	})
	for _, name := range []string{one, all3} {
		b.atMost("several: "+name+": TTFT p99 of the others, times alone", 2, all[name].ratio(all[alone], ttft99))
		b.atMost("several: "+name+": longest time of unused room in seconds", 0.3, all[name].most(unused))
	}
	if err := severalJain(ctx, &three); err != nil {
		return err
	}
	b.targets = append(b.targets, three.targets...)
	return nil
}

// severalJain judges what backlogged tenants get through several extprocs.
func severalJain(ctx context.Context, b *bench) error {
	rows := []row{{name: "fair", policy: fleet.Fair(b.gate)}}
	all, err := b.each(ctx, rows, b.jainRow)
	if err != nil {
		return err
	}
	b.atLeast("several: lowest index of Jain of engine seconds in a minute", 0.95, all["fair"].median(func(f figures) float64 { return f.jain }))
	return nil
}
