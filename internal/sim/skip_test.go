package sim

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/headgate/headgate/internal/profile"
)

// happening appends the events to all as text with their times, except tokens after the first.
func happening(all []string, events []Event) []string {
	for _, ev := range events {
		if ev.Kind != Token || ev.Index == 0 {
			all = append(all, fmt.Sprintf("%+v", ev))
		}
	}
	return all
}

// An engine that skips steps has bit-identical events, times and counters. Requests have token IDs,
// some with a common prefix, or only numbers of tokens. Some requests are cancelled.
func TestSkippedStepsAreAsIfTheyWereDone(t *testing.T) {
	skipped := 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's
		p := tight()
		p.Decode.AdapterSlowdown = 1.5
		if seed%2 == 1 { // with asynchronous scheduling
			p.AsyncScheduling, p.LaunchOverhead = true, float64(random.IntN(3))*0.05
		}
		p.Limits = profile.Limits{
			MaxSequences: 1 + random.IntN(6), MaxBatchedTokens: 8 + random.IntN(40), KVBlocks: 12 + random.IntN(60), BlockSize: 4,
			GPUAdapters: 2, HostAdapters: 3,
		}
		each, err := New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		skips, _ := New(p, nil)
		var done, told []string
		at := 0.0
		for range 60 {
			at += random.ExpFloat64() * 0.3
			for next, ok := each.Next(); ok && next <= at; next, ok = each.Next() {
				done = happening(done, each.Advance(next))
			}
			for next, ok := skips.NextEvent(); ok && next <= at; next, ok = skips.NextEvent() {
				was, _ := skips.Next()
				if was < next {
					skipped++
				}
				skips.Skip(next)
				told = happening(told, skips.Advance(next))
			}
			skips.Skip(at)
			if next, _ := skips.Next(); next == at {
				told = happening(told, skips.Advance(next))
			}
			if a, b := each.Counts(), skips.Counts(); a != b {
				t.Fatalf("seed %d at %v: %+v, and skipping %+v", seed, at, a, b)
			}
			r := Request{PromptTokens: 1 + random.IntN(20), OutputTokens: 1 + random.IntN(20)}
			if random.IntN(2) == 0 {
				tokens := make([]uint32, 40)
				for i := 8; i < len(tokens); i++ {
					tokens[i] = random.Uint32()
				}
				r = Request{
					Adapter: []string{"", "a", "b", "c"}[random.IntN(4)], Prompt: tokens[:r.PromptTokens],
					Output: tokens[20 : 20+r.OutputTokens],
				}
			}
			a, errA := each.Submit(at, r)
			b, errB := skips.Submit(at, r)
			if a != b || (errA == nil) != (errB == nil) {
				t.Fatalf("seed %d: %v, %v and %v, %v", seed, a, errA, b, errB)
			}
			if random.IntN(8) == 0 {
				a, _ := each.Load(at, "b")
				if b, _ := skips.Load(at, "b"); a != b {
					t.Fatalf("seed %d: loads %d and %d", seed, a, b)
				}
			}
			if random.IntN(8) == 0 {
				id := ID(1 + random.IntN(int(a)+1)) //nolint:gosec // few
				if each.Cancel(id) != skips.Cancel(id) {
					t.Fatalf("seed %d: one of them has not cancelled %d", seed, id)
				}
			}
		}
		for at, ok := each.Next(); ok; at, ok = each.Next() {
			done = happening(done, each.Advance(at))
		}
		for at, ok := skips.NextEvent(); ok; at, ok = skips.NextEvent() {
			skips.Skip(at)
			told = happening(told, skips.Advance(at))
		}
		if !slices.Equal(done, told) {
			for i := range min(len(done), len(told)) {
				if done[i] != told[i] {
					t.Fatalf("seed %d, event %d: %s, and skipping %s", seed, i, done[i], told[i])
				}
			}
			t.Fatalf("seed %d: %d events, and skipping %d", seed, len(done), len(told))
		}
		if !reflect.DeepEqual(each.kv, skips.kv) || !slices.Equal(each.Slots(), skips.Slots()) || !slices.Equal(each.Host(), skips.Host()) {
			t.Fatalf("seed %d: they end with other blocks or adapters", seed)
		}
	}
	if skipped < 1000 {
		t.Errorf("steps were skipped %d times: this shows nothing", skipped)
	}
}

// BenchmarkSkip simulates a request of 200 tokens that is alone on an engine, as in a fleet with
// little load. It reports tokens per second.
func BenchmarkSkip(b *testing.B) {
	p := tight()
	p.Limits = profile.Limits{MaxSequences: 256, MaxBatchedTokens: 8192, KVBlocks: 16384, BlockSize: 16}
	for name, skip := range map[string]bool{"each": false, "skipped": true} {
		b.Run(name, func(b *testing.B) {
			e, err := New(p, nil)
			if err != nil {
				b.Fatal(err)
			}
			at := 0.0
			for b.Loop() {
				if _, err := e.Submit(at, Request{PromptTokens: 1000, OutputTokens: 200}); err != nil {
					b.Fatal(err)
				}
				next := e.Next
				if skip {
					next = e.NextEvent
				}
				for is, ok := next(); ok; is, ok = next() {
					at = is
					e.Skip(at)
					e.Advance(at)
				}
			}
			b.ReportMetric(200*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtokens/s")
		})
	}
}
