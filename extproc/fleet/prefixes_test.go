package fleet_test

import (
	"sync"
	"testing"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// cachedAt returns how many tokens of a prompt an endpoint has cached.
func cachedAt(t *testing.T, f *fleet.Fleet, address string, blocks []uint64) int {
	t.Helper()
	n := numberOf(t, f, address)
	if all := f.Cached(&pick.Request{}, blocks, nil); n < len(all) {
		return int(all[n])
	}
	return 0
}

func numberOf(t *testing.T, f *fleet.Fleet, address string) int {
	t.Helper()
	for _, e := range f.View().Snapshot.Pools[objects.EndpointsPool.String()].Endpoints {
		if e.Address == address {
			return e.Number
		}
	}
	t.Fatalf("%s is no endpoint", address)
	return 0
}

// A prompt that was sent to an endpoint is cached there until the engine restarts or the endpoint
// is removed, up to the size of the engine's cache.
func TestCachedPromptsOfEndpoints(t *testing.T) {
	const a, b, c = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
	blocks := []uint64{11, 12, 13, 14, 15}
	f := fleet.New(fleet.Config{})
	f.SetWorld(objects.Build(objects.Endpoints([]string{a, b})))
	want := func(when string, atA, atB int) {
		t.Helper()
		if gotA, gotB := cachedAt(t, f, a, blocks), cachedAt(t, f, b, blocks); gotA != atA || gotB != atB {
			t.Errorf("%s: %d and %d tokens, want %d and %d", when, gotA, gotB, atA, atB)
		}
	}
	want("nothing was sent", 0, 0)
	f.Sent(numberOf(t, f, a), blocks)
	f.Sent(numberOf(t, f, b), blocks[:2])
	want("it was sent", 5, 2)
	f.Scrape(a).Succeeded(engine.Load{Started: engine.Known(1), KVTokens: engine.Known(3*prefix.BlockTokens + 1)})
	want("the engine keeps three blocks", 3, 2)
	f.Scrape(b).Succeeded(engine.Load{Started: engine.Known(1), KVTokens: engine.Known(1e300)})
	want("the other reports a larger cache", 3, 2)
	f.Scrape(a).Succeeded(engine.Load{Started: engine.Known(2), KVTokens: engine.Known(3*prefix.BlockTokens + 1)})
	want("the engine restarted", 0, 2)
	f.Sent(numberOf(t, f, a), blocks)
	want("it was sent again", 3, 2)
	f.Observe(outcome.Outcome{Pool: objects.EndpointsPool.String(), Endpoint: a, Status: 200, Bytes: 100, Prompt: engine.Known(50)})
	want("a token has two bytes instead of four", 1, 2)
	f.Scrape(a).Succeeded(engine.Load{Started: engine.Known(2), KVTokens: engine.Known(3*prefix.BlockTokens + 1), Forgets: true})
	want("the engine has no prefix cache", 0, 2)
	f.Sent(numberOf(t, f, a), blocks)
	want("it was sent once more", 0, 2)

	f.SetWorld(objects.Build(objects.Endpoints([]string{b})))
	f.SetWorld(objects.Build(objects.Endpoints([]string{b, c})))
	if numberOf(t, f, c) != 0 || cachedAt(t, f, c, blocks) != 0 {
		t.Errorf("a new endpoint has the number %d and %d tokens of a prompt that was sent elsewhere", numberOf(t, f, c),
			cachedAt(t, f, c, blocks))
	}
	f.Sent(0, blocks)
	if got := cachedAt(t, f, c, blocks); got != 5 {
		t.Errorf("it keeps %d tokens, want all: the limit of the number's former owner must not apply", got)
	}
}

// If another endpoint serves a request than the one it was sent to, the beginning of the prompt is
// treated as cached there, too.
func TestPromptMovesWithItsRequest(t *testing.T) {
	f, _ := started()
	blocks := make([]uint64, 40)
	for i := range blocks {
		blocks[i] = uint64(i + 1)
	}
	view(f)
	d := decide(t, f, "llama")
	there := a
	if d.Endpoint.Address == a {
		there = b
	}
	at := func() int32 {
		for _, e := range view(f).Endpoints {
			if all := f.Cached(&pick.Request{}, blocks, nil); e.Address == there && e.Number < len(all) {
				return all[e.Number]
			}
		}
		return 0
	}
	request := f.Begin(d)
	request.Asks(blocks)
	if f.Moved(request, "10.9.9.9:8000"); at() != 0 {
		t.Errorf("it moved to an unknown endpoint, and %s has %d blocks", there, at())
	}
	if f.Moved(request, there); at() != 32 {
		t.Errorf("at its new endpoint there are %d blocks, want 32", at())
	}
}

// The index of prefixes uses the configured amount of memory.
func TestPrefixCacheBytes(t *testing.T) {
	f := fleet.New(fleet.Config{PrefixCacheBytes: 64 * 3})
	f.Sent(0, []uint64{11, 12, 13, 14, 15})
	if got := f.Cached(&pick.Request{}, []uint64{11, 12, 13, 14, 15}, nil); got[0] != 3 {
		t.Errorf("%d blocks are there, want three", got[0])
	}
}

// Requests read and write the index concurrently, while engines restart.
func TestConcurrentPrefixes(*testing.T) {
	const a = "10.0.0.1:8000"
	f := fleet.New(fleet.Config{PrefixCacheBytes: 64 * 100})
	f.SetWorld(objects.Build(objects.Endpoints([]string{a})))
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			var dst []int32
			for n := range uint64(200) {
				blocks := []uint64{n, n + 1, n + 2}
				f.Sent(i, blocks)
				dst = f.Cached(&pick.Request{}, blocks, dst)
				f.Scrape(a).Succeeded(engine.Load{Started: engine.Known(float64(n))})
			}
		})
	}
	all.Wait()
}
