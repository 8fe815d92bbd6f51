package endpointstate_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

// told is a backlog of another process, as that process reports it.
func told(address string, requests, tokens int64) endpointstate.Backlog {
	return endpointstate.Backlog{
		Endpoint: address, Requests: requests, Through: start.UnixNano(), Beside: requests, Urgency: requests,
		Tokens: tokens,
	}
}

// Backlogs that peers report take effect at once, also in existing views. Load that a scrape finds
// in excess of the requests of peers and of this process is attributed to other sources.
func TestPeersBacklogsAreTheirOwn(t *testing.T) {
	s := predicted()
	e := endpointOf(s)
	sees := func(l endpointstate.Scrape, running, usage float64) (requests, tokens int64) {
		s.ScrapeSucceeded(l, engine.Load{Running: engine.Known(running), KVUsage: engine.Known(usage), KVTokens: engine.Known(1000)})
		e := endpointOf(s)
		return e.Others, e.OthersTokens
	}
	s.SetPeers([]endpointstate.Backlog{told(a, 3, 200)}, start)
	if p := e.Peers; p.Requests.Load() != 3 || p.Tokens.Load() != 200 || p.Beside.Load() != 3 || p.Urgency.Load() != 3 ||
		p.Through.Load() != start.UnixNano() || e.Pending() != 3 {
		t.Errorf("in an older view peers have %d requests with %d tokens; %d are pending", p.Requests.Load(), p.Tokens.Load(),
			e.Pending())
	}
	if s.Changed() {
		t.Error("it publishes a new view")
	}
	if requests, tokens := sees(s.Scrape(a, start), 5, 0.5); requests != 2 || tokens != 300 {
		t.Errorf("of five requests with 500 tokens, peers report 3 with 200, and other sources have %d and %d", requests, tokens)
	}
	l := s.Scrape(a, start)
	s.SetPeers([]endpointstate.Backlog{told(a, 1, 200)}, start)
	if requests, _ := sees(l, 3, 0.5); requests != 0 {
		t.Errorf("peers' requests from before the scrape count as %d requests of other sources", requests)
	}
	s.ForgetPeers(start)
	if requests, tokens := sees(s.Scrape(a, start), 3, 0.5); requests != 3 || tokens != 500 || e.Peers.Through.Load() != 0 ||
		e.Peers.Urgency.Load() != 0 {
		t.Errorf("without reports other sources have %d requests and %d tokens", requests, tokens)
	}
}

// Backlogs that peers report are kept for an endpoint that does not exist yet, or that is removed
// and added again.
func TestBacklogsOfUnknownEndpointsAreKept(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetPeers([]endpointstate.Backlog{told(a, 3, 0), told(b, 2, 0)}, start)
	s.SetPeers([]endpointstate.Backlog{told(b, 0, 0)}, start)
	pending := func() (all [2]int64) {
		for i := range all {
			all[i] = view(s, start).Snapshot.Pools["ns/one"].Endpoints[i].Pending()
		}
		return all
	}
	s.SetWorld(world("one"))
	if got := pending(); got != [2]int64{3, 0} {
		t.Errorf("pending are %v", got)
	}
	s.SetWorld(world())
	s.SetWorld(world("one"))
	if got := pending(); got != [2]int64{3, 0} {
		t.Errorf("after a removal and return %v are pending", got)
	}
	s.SetWorld(world())
	s.ForgetPeers(start)
	s.SetWorld(world("one"))
	if got := pending(); got != [2]int64{} {
		t.Errorf("after ForgetPeers %v are pending", got)
	}
}

// The requests of this process are reported as sums per endpoint. An endpoint without requests has
// only zeros.
func TestBacklogsAreSums(t *testing.T) {
	s := predicted()
	room := make([]pick.Decision, 1)
	for range 2 {
		if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, view(s, start).Snapshot, pick.Request{
			Pool: "ns/one", Base: true, Near: a, Demand: pick.Demand{Prompt: 200, Output: 100, Now: start.UnixNano()},
		}, room); err != nil {
			t.Fatal(err)
		}
		ours := endpointstate.CountsOf(room[0])
		ours.Begin(start)
	}
	all := make(map[string]endpointstate.Backlog)
	s.Backlogs(func(b endpointstate.Backlog) { all[b.Endpoint] = b })
	// Beside includes two sequences with 200 tokens and half of each answer. The prefill of the
	// second request also includes the step of the first.
	got := all[a]
	if through := time.Duration(got.Through - start.UnixNano()); through < 400*time.Millisecond || through > 450*time.Millisecond {
		t.Errorf("their prompts are computed after %v", through)
	}
	if got.Through = 0; got != (endpointstate.Backlog{Endpoint: a, Requests: 2, Beside: 7_000_000_000, Urgency: 20_000, Tokens: 500}) {
		t.Errorf("the backlog of this process is %+v", got)
	}
	if len(all) != 2 || all[b] != (endpointstate.Backlog{Endpoint: b}) {
		t.Errorf("at the other endpoint it is %+v", all[b])
	}
}

// Prompts of this process and of its peers queue behind each other. Elapsed time reduces their
// common queue only once.
func TestPromptsOfPeersQueue(t *testing.T) {
	s := predicted()
	e := endpointOf(s)
	after := start.Add
	tell := func(at, left time.Duration, requests int64) {
		b := told(a, requests, 0)
		b.Through = after(at + left).UnixNano()
		s.SetPeers([]endpointstate.Backlog{b}, after(at))
	}
	want := func(when string, left time.Duration) {
		t.Helper()
		if got := time.Duration(e.Backlog.Queue.Load() - start.UnixNano()); got != left {
			t.Errorf("%s: all prompts are computed after %v, want %v", when, got, left)
		}
	}
	room := make([]pick.Decision, 1)
	if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, view(s, start).Snapshot, pick.Request{
		Pool: "ns/one", Base: true, Near: a, Demand: pick.Demand{Prompt: 200, Output: 100, Now: start.UnixNano()},
	}, room); err != nil {
		t.Fatal(err)
	}
	ours := endpointstate.CountsOf(room[0])
	ours.Begin(start)
	own := time.Duration(e.Backlog.Queue.Load() - start.UnixNano())
	step := time.Duration(e.Profile.Decode.Base*1e9) + time.Duration(e.Backlog.Beside.Load()/1000)
	tell(100*time.Millisecond, time.Second, 1) // ours is being computed, so that theirs need a further step
	want("peers' prompts wait for ours", own+step+time.Second)
	tell(300*time.Millisecond, 800*time.Millisecond, 1)
	want("time has passed", own+step+time.Second)
	tell(300*time.Millisecond, 1000*time.Millisecond, 2)
	want("peers have another", own+2*step+1200*time.Millisecond)
	ours.End(after(300 * time.Millisecond))
	want("ours has ended, and peers' have not", own+2*step+1200*time.Millisecond)
	ours.Begin(after(300 * time.Millisecond))
	want("we have another", 2*own+2*step+1200*time.Millisecond)
	tell(400*time.Millisecond, 0, 0)
	want("peers' have ended early", 2*own+2*step+300*time.Millisecond)
	tell(500*time.Millisecond, time.Second, 1) // our second prompt is being computed
	want("one more", 2*own+3*step+1300*time.Millisecond)
	s.ForgetPeers(after(500 * time.Millisecond))
	want("peers are forgotten", 2*own+3*step+300*time.Millisecond)
	idle := func(when string) {
		t.Helper()
		if queue := e.Backlog.Queue.Load(); queue != 0 {
			t.Errorf("%s: %d of nobody's prompts remain", when, queue)
		}
	}
	ours.End(after(600 * time.Millisecond))
	idle("ours has ended last")
	ours.Begin(after(600 * time.Millisecond))
	tell(600*time.Millisecond, time.Second, 1)
	ours.End(after(600 * time.Millisecond))
	tell(700*time.Millisecond, 0, 0)
	idle("the peers' has ended last")
}

// Peers that report fifty times a second open at most one step in the time of a step, so the queue
// stays short. A report of an extremely long step makes it at most a second longer.
func TestManyReportsDoNotLengthenTheQueue(t *testing.T) {
	s := predicted()
	e := endpointOf(s)
	const requests, beside = 8, 20_000_000_000 // each step decodes for 20 ms
	step := time.Duration(e.Profile.Decode.Base*1e9) + 20*time.Millisecond
	report := func(at, prompts time.Duration, beside int64) time.Duration {
		b := told(a, requests, 0)
		b.Through, b.Beside = start.Add(at+prompts).UnixNano(), beside
		s.SetPeers([]endpointstate.Backlog{b}, start.Add(at))
		return time.Duration(e.Backlog.Queue.Load() - start.Add(at).UnixNano())
	}
	const interval, prompt = 20 * time.Millisecond, 2 * time.Millisecond
	if got := report(-time.Second, prompt, beside); got != prompt {
		t.Errorf("while nobody decodes, the first prompt takes %v", got)
	}
	longest := time.Duration(0)
	for at := time.Duration(0); at < 10*time.Second; at += interval {
		longest = max(longest, report(at, prompt, beside))
	}
	if longest < step || longest > 2*(step+4*prompt) {
		t.Errorf("the queue takes up to %v, with steps of %v", longest, step)
	}
	report(11*time.Second, 0, 1<<62)
	if got := report(11*time.Second, prompt, 0); got != time.Second+prompt {
		t.Errorf("after a report of an extremely long step the queue takes %v", got)
	}
}
