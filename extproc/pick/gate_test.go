package pick_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// stated adds requests with bands and objectives to an endpoint.
func (f *fleet) stated(t *testing.T, e *pick.Endpoint, value string) {
	t.Helper()
	for pair := range strings.SplitSeq(value, ",") {
		band, objective, _ := strings.Cut(pair, ":")
		f.begin(e, int32(number(t, band)), decimal(t, objective))
	}
}

// begin counts a request at an endpoint that adds nothing but its band and objective.
func (f *fleet) begin(e *pick.Endpoint, band int32, objective float64) pick.Claim {
	c := pick.StatedClaim(band, objective)
	e.Backlog.Begin(c, now)
	return c
}

// reserved returns the reservation of another request.
func (f *fleet) reserved(t *testing.T, value string) pick.Reservation {
	t.Helper()
	words := strings.Split(value, ":")
	i := slices.IndexFunc(f.pool.Endpoints, func(e *pick.Endpoint) bool { return e.Address == words[0] })
	r := pick.Reservation{Endpoint: i, Band: int32(number(t, words[1])), Holder: 7}
	if len(words) > 2 {
		r.Slot = f.count(words[0], words[2])
	}
	return r
}

// closed returns an endpoint whose room belongs to another process.
func (f *fleet) closed(t *testing.T, value string) pick.ClosedFor {
	t.Helper()
	name, band, _ := strings.Cut(value, ":")
	all := make(pick.ClosedFor, len(f.pool.Endpoints))
	for i := range all {
		if all[i] = pick.NoBand; f.pool.Endpoints[i].Address == name {
			all[i] = number(t, band)
		}
	}
	return all
}

// reservation describes the result of pick.Reserve.
func (f *fleet) reservation(policy pick.Policy, request pick.Request) string {
	is, found := pick.Reserve(policy, f.snapshot(), request, 1)
	if !found {
		return "none\n"
	}
	name := f.pool.Endpoints[is.Endpoint].Address
	for key, count := range f.counts {
		if count == is.Slot {
			return fmt.Sprintf("the slot of %s\n", strings.TrimPrefix(key, name+" "))
		}
	}
	return name + "\n"
}

// obstacles describes the results of pick.Obstacle.
func (f *fleet) obstacles(policy pick.Policy, request pick.Request) string {
	var all strings.Builder
	for i := range f.pool.Endpoints {
		if why := pick.Obstacle(policy, f.snapshot(), request, i); why != "" {
			fmt.Fprintf(&all, "%s: %s\n", f.pool.Endpoints[i].Address, why)
		}
	}
	return cmp.Or(all.String(), "each has room\n")
}

// noRoom describes the result of pick.Opens.
func (f *fleet) noRoom(policy pick.Policy, request pick.Request) string {
	at, known := pick.Opens(policy, f.snapshot(), request)
	if !known {
		return pick.ErrNoRoom.Error() + "\n"
	}
	return fmt.Sprintf("%v for %.3g s\n", pick.ErrNoRoom, float64(at-now)*1e-9)
}

// someGate is a gate with its defaults.
var someGate = pick.Gate{On: true, Queue: pick.DefaultGateQueue, PerToken: pick.DefaultGatePerToken}

// A decision with a gate allocates nothing, whatever the gate considers.
func TestGateAllocatesNothing(t *testing.T) {
	s, demand := loaded(8)
	full := someGate
	full.Window, full.Headroom, full.Reserved = 64, pick.DefaultHeadroom, []pick.Reservation{{Endpoint: 1, Holder: 7}}
	full.Closed = make(pick.ClosedFor, 8)
	for i := range full.Closed {
		full.Closed[i] = pick.NoBand
	}
	room := make([]pick.Decision, 3)
	for _, gate := range []pick.Gate{someGate, full} {
		for _, rule := range []pick.Rule{pick.Proposal, pick.Latency} {
			r := pick.Request{Pool: thePool, Model: "a", Demand: demand, Gate: gate}
			allocs := testing.AllocsPerRun(100, func() {
				r.Random += 0x9e3779b97f4a7c15
				if _, err := pick.Pick(pick.Policy{Rule: rule, Threshold: 32}, s, r, room); err != nil {
					t.Fatal(err)
				}
			})
			if allocs > 0 {
				t.Errorf("%v: a decision with the gate %+v allocates %g times", rule, gate, allocs)
			}
		}
	}
}

// BenchmarkGate measures decisions with a gate and without one, in the same fleet. The gate is open
// at most endpoints. To compare medians:
//
//	go test ./extproc/pick -run "^$" -bench Gate -count 9
func BenchmarkGate(b *testing.B) {
	for _, endpoints := range []int{8, 64, 1000} {
		s, demand := loaded(endpoints)
		for _, gate := range []pick.Gate{{}, someGate} {
			r := pick.Request{Pool: thePool, Model: "a", Demand: demand, Gate: gate}
			b.Run(fmt.Sprintf("endpoints=%d/gate=%v", endpoints, gate.On), func(b *testing.B) {
				room := make([]pick.Decision, 3)
				b.ReportAllocs()
				for b.Loop() {
					r.Random += 0x9e3779b97f4a7c15
					if _, err := pick.Pick(pick.Policy{Rule: pick.Latency, Threshold: 32}, s, r, room); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
