package stream_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
	"github.com/headgate/headgate/extproc/stream"
)

// completion returns a body whose prompt begins with this many common blocks and goes on with this
// many blocks of its own.
func completion(model string, shared, own int, mine string) string {
	block := func(s string) string { return strings.Repeat(s, prefix.BlockBytes) }
	return fmt.Sprintf(`{"model":%q,"prompt":"%s%s"}`, model, strings.Repeat(block("s"), shared), strings.Repeat(block(mine), own))
}

// through passes a request through a server.
func through(t *testing.T, s *stream.Server, body string) stream.Exchange {
	t.Helper()
	return throughTo(t, s.Exchange(stream.Own, "", 0), body)
}

func throughTo(t *testing.T, x stream.Exchange, body string) stream.Exchange {
	t.Helper()
	for _, line := range []string{"headers :method=POST :path=/v1/completions", "body " + body} {
		if _, err := x.Receive(message(t, line), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if x.HasPrompt() {
		t.Error("the prompt is kept during the response")
	}
	return x
}

// cachedAt returns how many blocks of a prompt are in the cache of a pool's endpoint, and how many
// tokens the prompt has.
func cachedAt(t *testing.T, f *fleet.Fleet, x stream.Exchange, pool, body string) (cached, of int32) {
	t.Helper()
	request := x.Asked([]byte(body))
	for _, e := range f.View().Snapshot.Pools[pool].Endpoints {
		if e.Number < len(request.Demand.Cached) {
			cached = max(cached, request.Demand.Cached[e.Number])
		}
	}
	return cached, int32(request.Demand.Prompt)
}

// A prompt is found in the cache if an earlier request with the same prompt was for the same
// adapter, or for the base model under any of its names.
func TestPromptsAreRemembered(t *testing.T) {
	f := newFleet()
	server, _ := newServer(t, f, nil)
	server.ReadPrompts()
	x := through(t, server, completion("text-to-sql", 4, 2, "a"))
	var h prefix.Hasher
	h.Begin(prefix.Scope{Pool: "ns/base", Adapter: "sql-v2"}.Seed())
	h.Write([]byte(strings.Repeat("s", 2*prefix.BlockBytes)))
	if got := f.Cached(&pick.Request{}, h.Blocks(), nil); slices.Max(got) != 2 {
		t.Errorf("%v blocks are cached of two blocks for the pool's adapter", got)
	}
	for _, c := range []struct {
		what, body string
		cached, of int32
	}{
		{"the same", completion("text-to-sql", 4, 2, "a"), 6, 6 * prefix.BlockTokens},
		{"the same beginning", completion("text-to-sql", 4, 3, "b"), 4, 7 * prefix.BlockTokens},
		{"another prompt", completion("text-to-sql", 0, 1, "c"), 0, prefix.BlockTokens},
	} {
		if cached, of := cachedAt(t, f, x, "ns/base", c.body); cached != c.cached || of != c.of {
			t.Errorf("%s: %d blocks of %d tokens, want %d of %d", c.what, cached, of, c.cached, c.of)
		}
	}
	base := through(t, server, completion("gpt-4", 1, 0, ""))
	if cached, _ := cachedAt(t, f, base, "ns/base", completion("llama", 4, 2, "a")); cached != 1 {
		t.Errorf("for the base model %d blocks are cached, want those of its own prompt and none of the adapter's", cached)
	}
	base = through(t, server, completion("llama", 2, 0, ""))
	if cached, _ := cachedAt(t, f, base, "ns/base", completion("gpt-4", 4, 2, "a")); cached != 2 {
		t.Errorf("for the base model %d tokens are cached, want those of the prompt under its other name", cached)
	}
}

// In a pool that no route names, prompts are cached by the name of the model.
func TestPromptsOfAnOpenPool(t *testing.T) {
	f := newFleet()
	server, _ := newServer(t, f, nil)
	server.ReadPrompts()
	x := throughTo(t, server.Exchange(stream.Gateway, "open-picker:9002", 9002), completion("qwen", 2, 0, ""))
	if cached, _ := cachedAt(t, f, x, "ns/open", completion("qwen", 3, 0, "")); cached != 2 {
		t.Errorf("%d tokens are cached, want those of the prompt before", cached)
	}
	if cached, _ := cachedAt(t, f, x, "ns/open", completion("other", 3, 0, "")); cached != 0 {
		t.Errorf("%d tokens of another model are cached", cached)
	}
}

// Only the first pick is expected to cache the prompt.
func TestPromptIsAtItsPick(t *testing.T) {
	f := newFleet()
	server, _ := newServer(t, f, nil)
	server.ReadPrompts()
	x := through(t, server, completion("sticky", 3, 0, ""))
	request := x.Asked([]byte(completion("sticky", 3, 0, "")))
	for _, e := range f.View().Snapshot.Pools["ns/sticky"].Endpoints {
		var has int32
		if e.Number < len(request.Demand.Cached) {
			has = request.Demand.Cached[e.Number]
		}
		if want := int32(e.InFlight.Load()) * 3; has != want {
			t.Errorf("%s, with %d requests, has %d blocks, want %d", e.Address, e.InFlight.Load(), has, want)
		}
	}
}

// If a gateway gets several endpoints, it reports which one answered. That endpoint is expected to
// cache the prompt too.
func TestPromptIsAtTheAnsweringEndpoint(t *testing.T) {
	f := newFleet()
	server, _ := newServer(t, f, func(c *stream.Config) { c.Settings.EndpointsPerRequest = 2 })
	server.ReadPrompts()
	body := completion("qwen", 4, 0, "")
	x := throughTo(t, server.Exchange(stream.Gateway, "open-picker:9002", 9002), body)
	have := func() (all []string) {
		cached := x.Asked([]byte(body)).Demand.Cached
		for _, e := range f.View().Snapshot.Pools["ns/open"].Endpoints {
			if e.Number < len(cached) && cached[e.Number] == 4 {
				all = append(all, e.Address)
			}
		}
		return all
	}
	sent := have()
	for _, e := range f.View().Snapshot.Pools["ns/open"].Endpoints {
		if len(sent) == 1 && e.Address != sent[0] {
			if _, err := x.Receive(message(t, "response @served="+e.Address+" :status=200 end"), time.Now()); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if all := have(); len(sent) != 1 || len(all) != 2 {
		t.Errorf("it was sent to %v, and then %v have it", sent, all)
	}
}

// No prompt is read if the policy needs none.
func TestPromptsAreReadIfThePolicyNeedsThem(t *testing.T) {
	f := newFleet()
	server, _ := newServer(t, f, nil)
	through(t, server, completion("text-to-sql", 4, 2, "a"))
	asking, _ := newServer(t, f, nil)
	asking.ReadPrompts()
	x := through(t, asking, completion("text-to-sql", 0, 1, "z"))
	if cached, _ := cachedAt(t, f, x, "ns/base", completion("text-to-sql", 4, 2, "a")); cached != 0 {
		t.Errorf("%d tokens of a prompt that should not be read", cached)
	}
}

// The prompt of a request that got no endpoint is not expected in any cache.
func TestPromptsThatWentNowhere(t *testing.T) {
	f := newFleet()
	server, _ := newServer(t, f, nil)
	server.ReadPrompts()
	x := through(t, server, completion("missing", 4, 2, "a"))
	if cached, of := cachedAt(t, f, x, "ns/base", completion("missing", 4, 2, "a")); cached != 0 || of == 0 || inFlight(f) != 0 {
		t.Errorf("%d of %d tokens, and %d requests in flight", cached, of, inFlight(f))
	}
}

// If prompts have common beginnings, a prompt that this extproc did not send is expected in the
// cache of one endpoint, because other extprocs may have sent it there.
func TestPromptsOfOtherExtprocs(t *testing.T) {
	f := newFleet()
	server, _ := newServer(t, f, nil)
	server.ReadPrompts()
	fresh := completion("text-to-sql", 0, 40, "c")
	x := through(t, server, completion("text-to-sql", 4, 2, "a"))
	if cached, _ := cachedAt(t, f, x, "ns/base", fresh); cached != 0 {
		t.Errorf("%d blocks are expected although no two prompts had anything in common", cached)
	}
	for range 300 {
		x = through(t, server, completion("text-to-sql", 4, 2, "a"))
	}
	all := x.Asked([]byte(fresh)).Demand.Cached
	there := slices.DeleteFunc(slices.Clone(all), func(n int32) bool { return n == 0 })
	if len(there) != 1 || there[0] < 30 || there[0] > 32 {
		t.Errorf("of 32 blocks %v are expected", all)
	}
}
