package endpointstate_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

// unused is the load of an engine without requests.
func unused() engine.Load {
	load := engine.Load{Kind: engine.VLLM, Running: engine.Known(0), Waiting: engine.Known(0)}
	load.Totals.PromptTokens = engine.Known(100)
	return load
}

// plan returns whether the next scrape of a is due rarely.
func (s *rig) plan() bool {
	soon, rarely := s.now.Add(200*time.Millisecond), s.now.Add(time.Second)
	due, idle := s.Schedule.Plan(a, soon, rarely)
	return idle && due.Equal(rarely)
}

// An endpoint is idle if it is healthy and nothing shows that anyone uses it.
func TestIdleEndpoints(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *rig)
		want   bool
	}{
		"nothing uses it": {func(*rig) {}, true},
		"a request runs in the engine": {func(s *rig) {
			load := unused()
			load.Running = engine.Known(1)
			s.see(a, load)
		}, false},
		"a request waits in the engine": {func(s *rig) {
			load := unused()
			load.Waiting = engine.Known(1)
			s.see(a, load)
		}, false},
		"only waiting requests are reported": {func(s *rig) {
			load := unused()
			load.Running = engine.Value{}
			s.see(a, load)
		}, true},
		"the engine reports no requests": {func(s *rig) {
			load := unused()
			load.Running, load.Waiting = engine.Value{}, engine.Value{}
			s.see(a, load)
		}, false},
		"counters have changed since the page before": {func(s *rig) {
			load := unused()
			load.Totals.PromptTokens = engine.Known(101)
			s.see(a, load)
		}, false},
		"counters changed before that": {func(s *rig) {
			load := unused()
			load.Totals.PromptTokens = engine.Known(101)
			s.see(a, load)
			s.see(a, load)
		}, true},
		"this process has a request there": {func(s *rig) {
			p := s.pool()
			counts := endpointstate.CountsOf(pick.Decision{Endpoint: p.Endpoints[0], Copy: &p.Base[0]})
			counts.Begin(s.now)
		}, false},
		"another process has a request there": {func(s *rig) {
			s.SetPeers([]endpointstate.Backlog{{Endpoint: a, Requests: 1}}, s.now)
		}, false},
		"the other process's request has ended": {func(s *rig) {
			s.SetPeers([]endpointstate.Backlog{{Endpoint: a, Requests: 1}}, s.now)
			s.SetPeers([]endpointstate.Backlog{{Endpoint: a}}, s.now)
		}, true},
		"requests fail there": {func(s *rig) {
			s.RequestFailed(a, s.now)
			s.pool()
		}, false},
		"it is asleep": {func(s *rig) {
			load := unused()
			load.Asleep = true
			s.see(a, load)
			s.pool()
		}, false},
	} {
		s := started()
		for range 2 {
			s.see(a, unused())
			s.pool()
		}
		if !s.plan() {
			t.Fatal("an unused endpoint is not idle")
		}
		c.change(s)
		if got := s.plan(); got != c.want {
			t.Errorf("%s: idle is %v, want %v", name, got, c.want)
		}
	}
	if _, idle := started().Schedule.Plan("10.9.9.9:1", start, start); idle {
		t.Error("an unknown endpoint is idle")
	}
	s := started()
	s.see(a, unused())
	s.pool()
	if s.plan() {
		t.Error("an endpoint is idle after its first page with counters")
	}
}

// The first requests that other processes report at an endpoint are passed on once.
func TestUseByOtherProcessesIsReported(t *testing.T) {
	s := started()
	tell := func(requests int64) []string {
		s.SetPeers([]endpointstate.Backlog{{Endpoint: a, Requests: requests}}, s.now)
		return s.Schedule.TakeUsed()
	}
	for i, c := range []struct {
		requests int64
		want     int
	}{{0, 0}, {2, 1}, {1, 0}, {0, 0}, {1, 1}} {
		if got := tell(c.requests); len(got) != c.want || c.want == 1 && got[0] != a {
			t.Errorf("report %d: %v, want %d", i, got, c.want)
		}
	}
	if got := s.Schedule.TakeUsed(); len(got) != 0 {
		t.Errorf("%v is reported again", got)
	}
}

// An endpoint's silence counts from when its next scrape was due. A request that makes the next
// scrape due earlier also makes the silence begin earlier.
func TestSilenceCountsFromWhenAScrapeWasDue(t *testing.T) {
	for name, c := range map[string]struct {
		plans []time.Duration // when scrapes are due, after the last answer
		from  time.Duration   // when the silence begins
	}{
		"idle":            {[]time.Duration{time.Second}, time.Second},
		"busy":            {[]time.Duration{200 * time.Millisecond}, 200 * time.Millisecond},
		"idle, then busy": {[]time.Duration{time.Second, 300 * time.Millisecond}, 300 * time.Millisecond},
		"scraped rarely":  {[]time.Duration{time.Minute}, time.Minute},
		"not planned":     {nil, 0},
	} {
		s := started()
		for range 2 {
			s.see(a, unused())
			s.pool()
		}
		answered := s.now
		for _, after := range c.plans {
			s.Schedule.Plan(a, answered.Add(after), answered.Add(after))
		}
		for _, step := range []struct {
			silent time.Duration
			want   pick.State
		}{
			{time.Second - 1, pick.Healthy},
			{time.Second, pick.Stale},
			{10*time.Second - 1, pick.Stale},
			{10 * time.Second, pick.Lost},
		} {
			s.now = answered.Add(c.from + step.silent)
			s.see(b, engine.Load{})
			if states := s.states(); states[0] != step.want {
				t.Errorf("%s: silent for %v, the endpoint is %v, want %v", name, step.silent, states[0], step.want)
			}
		}
	}
}

// A scrape that changes nothing needs no new view. Every field of the load counts.
func TestScrapeWithoutNewsPublishesNothing(t *testing.T) {
	s := started()
	scrape := func(load engine.Load) bool {
		s.see(a, load)
		defer s.pool()
		return s.Changed()
	}
	clean := func() {
		s.view() // all pools are changed until the next view
		s.view()
	}
	clean()
	scrape(unused())
	if s.pool(); scrape(unused()) {
		t.Error("the same load is news")
	}
	var change func(v reflect.Value, path string)
	change = func(v reflect.Value, path string) {
		load := unused()
		for i := range v.NumField() {
			name := path + v.Type().Field(i).Name
			field := reflect.ValueOf(&load).Elem()
			for part := range strings.SplitSeq(name, ".") {
				field = field.FieldByName(part)
			}
			switch is := field.Addr().Interface().(type) {
			case *engine.Value:
				*is = engine.Known(is.Or(0) + 7)
			case *engine.Kind:
				*is = engine.SGLang
			case *bool:
				*is = true
			case *[]string:
				*is = []string{"sql"}
			case *[15]float64:
				is[3] = 1
			default:
				change(field, name+".")
				continue
			}
			if !scrape(load) {
				t.Errorf("a change of %s is no news", name)
			}
			load = unused()
			scrape(load)
			scrape(load)
		}
	}
	change(reflect.ValueOf(engine.Load{}), "")
	if scrape(unused()) {
		t.Error("the same load is news again")
	}
	p := s.pool()
	load := unused()
	load.Running = engine.Known(1)
	counts := endpointstate.CountsOf(pick.Decision{Endpoint: p.Endpoints[0], Copy: &p.Base[0]})
	counts.Begin(s.now)
	scrape(load)
	scrape(load)
	if counts.End(s.now); !scrape(load) {
		t.Error("it is no news that a running request is of another source")
	}
	s.Refused(a, s.now)
	s.advance(time.Millisecond)
	if s.pool(); !scrape(load) {
		t.Error("it is no news that the endpoint answers again")
	}
}
