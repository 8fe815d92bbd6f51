package placementclient_test

import (
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/placementclient"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

// learns lets the rig's new fleet scrape its two engines for a number of seconds; one engine is
// twice as slow as the other.
func (r *rig) learns(seconds int) {
	var ahead atomic.Int64
	world := r.fleet.View().World
	r.fleet = fleet.New(fleet.Config{Published: r.flow.Published, Placed: true, Now: func() time.Time {
		return time.Now().Add(time.Duration(ahead.Load()) - time.Duration(seconds)*time.Second)
	}})
	r.fleet.SetWorld(world)
	var counted [2][4]float64
	for n := range seconds {
		ahead.Add(int64(time.Second))
		for i, address := range []string{a, b} {
			c, number := &counted[i], engine.Known
			prompts, held := float64(n*7%5), 5000+5000*float64(n*3%7)
			steps := 1 / (float64(1+i) * (0.04 + 10*0.0003 + held*5e-7 + 0.0003*prompts*10))
			c[0], c[1], c[2], c[3] = c[0]+10*steps, c[1]+10, c[2]+prompts*10*steps*11/10, c[3]+1
			r.fleet.Scrape(address).Succeeded(engine.Load{
				Running: number(10), KVUsage: number(held / 100_000), KVTokens: number(100_000), Totals: engine.Totals{
					InterToken: engine.Timed{Count: number(c[0]), Seconds: number(c[1])}, PromptTokens: number(c[2]),
					CachedTokens: number(0),
					FirstToken:   engine.Timed{Count: number(c[3]), Seconds: number(c[3])},
				},
			})
		}
	}
	r.fleet.SetWorld(world) // publishes a view
}

// aRig returns an extproc that is not connected yet.
func aRig(t *testing.T) (r *rig, news *placementclient.News) {
	r, news = &rig{T: t}, placementclient.NewNews()
	r.flow = flow.New(flow.Config{
		View: func() *endpointstate.View { return r.fleet.View() }, MaxQueued: 10, MaxBytes: 1 << 20,
		Changed: news.Changed,
	})
	r.fleet = aFleet(r.flow.Published)
	return r, news
}

// step returns the predicted step times at the rig's two endpoints; 0 if predictions are not
// trusted.
func (r *rig) step() (all [2]float64) {
	p := r.fleet.View().Snapshot.Pools[thePool.String()]
	for i, e := range p.Endpoints {
		if p.Predictable {
			all[i] = e.Profile.StepTime(profile.Work{Sequences: 10, KVTokens: 20_000})
		}
	}
	return all
}

// predicts is true if the rig predicts the step times as.
func (r *rig) predicts(as [2]float64) bool {
	is := r.step()
	return math.Abs(is[0]/as[0]-1) < 0.01 && math.Abs(is[1]/as[1]-1) < 0.01
}

// A new extproc gets the learned profiles of another extproc through control. It uses them at once,
// even if the other extproc no longer runs.
func TestNewExtprocGetsLearnedProfiles(t *testing.T) {
	address, _ := aBoard(t)
	x, news := aRig(t)
	if x.learns(200); x.step()[0] == 0 {
		t.Fatalf("x does not predict: %+v", fleet.Read(x.fleet, func(s *endpointstate.State) []endpointstate.Known {
			return s.Times.Known()
		}))
	}
	as := x.step()
	leave := x.connections(address, news)
	y, news := aRig(t)
	if y.step()[0] != 0 {
		t.Fatal("y predicts before it knows anything")
	}
	began := time.Now()
	y.connections(address, news)
	y.await("y predicts", func() bool { return y.predicts(as) })
	t.Logf("y predicts after %v: %v", time.Since(began), y.step())
	if known := fleet.Read(y.fleet, func(s *endpointstate.State) []endpointstate.Known { return s.Times.Known() })[0]; !known.Trusted ||
		known.Why != "predictions of another extproc were accurate" || known.Since.IsZero() || len(known.Factors) != 2 {
		t.Errorf("y knows %+v", known)
	}
	leave()
	z, news := aRig(t)
	z.connections(address, news)
	z.await("z predicts although x has gone", func() bool { return z.predicts(as) })
	if fleet.Read(x.fleet, func(s *endpointstate.State) []endpointstate.Known {
		return s.Times.Known()
	})[0].Why != "predictions were accurate" {
		t.Error("x got a learned profile")
	}
}

// Implausible learned profiles from control are ignored; the plausible ones are used.
func TestImplausibleProfilesAreIgnored(t *testing.T) {
	x, _ := aRig(t)
	x.learns(200)
	good := placementclient.WireLesson(fleet.Read(x.fleet, func(s *endpointstate.State) []endpointstate.LearnedProfile {
		return s.Times.LearnedProfiles(x.fleet.Now())
	})[0])
	r := newRig(t)
	s := r.next()
	s.say(complete())
	s.inForce()
	for name, spoil := range map[string]func(l *placement.Lesson){
		"no number":          func(l *placement.Lesson) { l.Matrix[2] = math.NaN() },
		"out of range":       func(l *placement.Lesson) { l.Scale = 1e9 },
		"too short":          func(l *placement.Lesson) { l.Matrix = l.GetMatrix()[1:] },
		"too long":           func(l *placement.Lesson) { l.Right = append(l.GetRight(), 1) },
		"one more":           func(l *placement.Lesson) { l.Matrix = append(l.GetMatrix(), 1) },
		"no right side":      func(l *placement.Lesson) { l.Right = nil },
		"huge":               func(l *placement.Lesson) { l.Rows = math.MaxUint64 },
		"of an invalid pool": func(l *placement.Lesson) { l.Pool = "pool" },
		"of another":         func(l *placement.Lesson) { l.Pool = "ns/other" },
		"of an accelerator":  func(l *placement.Lesson) { l.Class = "A100" },
		"of another prior":   func(l *placement.Lesson) { l.Prior++ },
	} {
		bad := placementclient.WireLesson(fleet.Read(x.fleet, func(s *endpointstate.State) []endpointstate.LearnedProfile {
			return s.Times.LearnedProfiles(x.fleet.Now())
		})[0])
		spoil(bad)
		s.say(&placement.Update{Lessons: []*placement.Lesson{bad}})
		s.say(&placement.Update{Copies: []*placement.Copy{is(name, a, placement.Copy_LOADED)}})
		s.inForce()
		if known := fleet.Read(r.fleet, func(s *endpointstate.State) []endpointstate.Known {
			return s.Times.Known()
		})[0]; known.Rows != 0 || known.Trusted {
			t.Fatalf("%s: it is accepted: %+v", name, known)
		}
	}
	good.AgeMs = math.MaxUint64
	good.Factors = map[string]float64{a: math.NaN(), b: 0.5, "nowhere": 1}
	s.say(&placement.Update{Lessons: []*placement.Lesson{good}})
	r.await("the valid values are used", func() bool { return r.step()[0] > 0 })
	if known := fleet.Read(r.fleet, func(s *endpointstate.State) []endpointstate.Known {
		return s.Times.Known()
	})[0]; known.Factors[a] != 0 || math.Abs(known.Factors[b]-math.Exp(0.5)) > 1e-9 {
		t.Errorf("known is %+v", known)
	}
}
