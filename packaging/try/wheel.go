package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"
)

// rounds is how often each way starts. The ways take turns, so that both meet the same machine.
const rounds = 7

// limit is how much longer headgate run of the wheel may take than make run.
const limit = 1.5

// compare measures the time from headgate run to the first answer, from the wheel and from the
// tree.
func compare(ctx context.Context, dist, dir string, out io.Writer) error {
	bin, environment, err := install(ctx, dist, dir, out)
	if err != nil {
		return err
	}
	tree, err := root()
	if err != nil {
		return err
	}
	ways := []struct {
		name, program string
		flags         []string
	}{
		{"wheel", filepath.Join(bin, "headgate"), nil},
		{"make run", filepath.Join(tree, "bin/headgate"), []string{ // its flags
			"--cache", filepath.Join(tree, ".cache"), "--objects", filepath.Join(tree, "headgate/run/objects"),
			"--envoy-config", filepath.Join(tree, "envoy.yaml"),
		}},
	}
	times := make([][]time.Duration, len(ways))
	for round := range rounds + 1 {
		for n, way := range ways {
			g, err := start(way.program, filepath.Join(dir, fmt.Sprintf("%d-%d", round, n)), environment, way.flags...)
			if err != nil {
				return err
			}
			after, _, err := g.answered(ctx)
			g.stop()
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			if round > 0 { // the first round only fills the caches of files
				times[n] = append(times[n], after)
			}
		}
	}
	for n, way := range ways {
		slices.Sort(times[n])
		fmt.Fprintf(out, "%-9s median %.2f s (%.2f to %.2f s, %d rounds)\n", way.name, times[n][rounds/2].Seconds(),
			times[n][0].Seconds(), times[n][rounds-1].Seconds(), rounds)
	}
	ratio := times[0][rounds/2].Seconds() / times[1][rounds/2].Seconds()
	fmt.Fprintf(out, "the wheel takes %.2f times as long; at most %.1f times is the aim\n", ratio, limit)
	if ratio > limit {
		return fmt.Errorf("headgate run of the wheel is too slow: %.2f times", ratio)
	}
	return nil
}
