package fleet

import (
	"math"
	"reflect"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

// limited holds requests while the endpoint has as many as it may, and refuses more than hold.
type limited struct {
	line
	running, most, hold int
	scraped             bool
}

func (p *limited) Pick(float64, *Request) int { panic("a Holder does not pick") }

func (p *limited) Scraped(float64, int, engine.Load) { p.scraped = true }
func (p *limited) Ended(float64, *Request, int)      { p.running-- }
func (p *limited) Wake(float64) float64              { return math.Inf(1) }
func (p *limited) Hold(_ float64, r *Request) []Refusal {
	if p.len() == p.hold {
		return []Refusal{{r, 5}}
	}
	p.push(r)
	return nil
}

func (p *limited) Next(float64) (*Request, int) {
	r := p.first()
	if r == nil || p.running == p.most {
		return nil, 0
	}
	p.pop()
	p.running++
	return r, 0
}

// A request that finds no room waits until another one ends. A refused one returns after its
// Retry-After, or is lost.
func TestHeldRequestsGoWhenOthersEnd(t *testing.T) {
	f := four()
	f.Endpoints = 1
	requests := func(yield func(Request) bool) {
		for i := range 4 {
			if !yield(Request{At: float64(i) / 100, Prompt: prompt(nil, uint32(i), 100), Output: 20, Returns: i == 2}) {
				return
			}
		}
	}
	p := &limited{most: 1, hold: 1}
	o := outcome(t, f, 1, requests, func(Fleet, uint64) (Picker, error) { return p, nil })
	first, second, third, fourth := o.Results[0], o.Results[1], o.Results[2], o.Results[3]
	if second.Sent != first.LastToken || second.FirstToken <= second.Sent {
		t.Errorf("the second request was sent at %g s, and the first one ended at %g s", second.Sent, first.LastToken)
	}
	if third.Refusals != 1 || third.Refused || third.Sent != third.At+5 {
		t.Errorf("the third request must be refused and sent 5 s later: %+v", third)
	}
	if !fourth.Refused || fourth.Refusals != 1 || !math.IsInf(fourth.FirstToken, 1) {
		t.Errorf("the fourth request must be lost: %+v", fourth)
	}
	if p.running != 0 || p.len() != 0 {
		t.Errorf("%d are running and %d held at the end", p.running, p.len())
	}
}

// Closed loops have a constant number of requests in flight until their end.
func TestClosedLoops(t *testing.T) {
	f := four()
	f.SampleInterval = 1
	s := Stream{Client: Client{Tenant: "a"}, Lengths: Lengths{{Prompt: 100, Output: 200}}}
	f.Closed = []Closed{{Clients: 3, From: 2, Until: 10, Requests: s.Endless(1)}}
	o := outcome(t, f, 1, func(func(Request) bool) {}, Headgate(pick.LeastRequest))
	inFlight := func(at float64) (n int) {
		for _, r := range o.Results {
			if r.At <= at && r.LastToken > at {
				n++
			}
		}
		return n
	}
	for at, want := range map[float64]int{1: 0, 5: 3, 9.5: 3, 60: 0} {
		if got := inFlight(at); got != want {
			t.Errorf("%d requests are in flight at %g s, want %d", got, at, want)
		}
	}
	last := o.Samples[len(o.Samples)-1]
	if n := uint64(200 * len(o.Results)); last.Tokens != n && last.At >= o.Seconds {
		t.Errorf("%d tokens are counted, want %d", last.Tokens, n)
	}
	p := f.Profile
	want := 0.0
	for range o.Results {
		want += 100*p.Prefill.PerToken + 100*100*p.Prefill.PerTokenSquared
		for i := 1; i < 200; i++ {
			want += p.Decode.PerSequence + p.Decode.PerKVToken*float64(100+i)
		}
	}
	if got := last.Seconds["a"]; math.Abs(got/want-1) > 0.1 {
		t.Errorf("the engine time of a is %g s, want %g s", got, want)
	}
}

// In a flood the fair queue protects the others, and leaves nothing behind. Equal seeds give equal
// results.
func TestFairQueueProtectsOthers(t *testing.T) {
	f := four()
	f.Endpoints, f.BacklogSync = 2, 0.02
	s := Stream{Client: Client{Route: "r", Tenant: "a"}, Lengths: Conversation()}
	mob := Stream{Number: 1, Client: Client{Route: "r", Tenant: "mob"}, Lengths: Conversation()}
	gate := pick.Gate{On: true, Queue: pick.DefaultGateQueue, PerToken: pick.DefaultGatePerToken, Headroom: pick.DefaultHeadroom}
	ttft := func(p Policy) (is Outcome, ttft99 float64) {
		is = outcome(t, f, 1, Merge(s.Arrivals(1, 1, 0, 60), mob.Arrivals(1, 10, 5, 45)), p)
		var all []float64
		for _, r := range is.Results {
			if r.Client.Tenant == "a" {
				all = append(all, r.FirstToken-r.At)
			}
		}
		return is, quantile(all, 0.99)
	}
	var made *gated
	fair := func(f Fleet, seed uint64) (Picker, error) {
		p, err := Fair(gate)(f, seed)
		made = p.(*gated)
		return p, err
	}
	first, with := ttft(fair)
	again, _ := ttft(fair)
	_, without := ttft(NoFlow)
	if !reflect.DeepEqual(first, again) {
		t.Error("a second run gives something else")
	}
	if with > without/5 {
		t.Errorf("the TTFT p99 of the other tenant is %.2f s with the fair queue, and %.2f s without", with, without)
	}
	o := made.order.(*fairOrder)
	if d := o.queue.Debug(); d.Requests != 0 || d.Accounts != 0 || len(o.running) != 0 || len(made.inFlight) != 0 {
		t.Errorf("left at the end: %+v, %d running, %d in flight", d, len(o.running), len(made.inFlight))
	}
}
