package placementclient

import (
	"slices"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/placementproto"
)

// reporter stores what was reported to control on this stream. The next report contains the
// differences.
type reporter struct {
	waiting  map[objects.ModelKey]wants
	inFlight map[endpointstate.CopyKey]int64
	leaving  map[string]endpointstate.Leaving
	asked    map[string]asked // last reports by endpoint, without empty ones
	taught   map[endpointstate.AcceleratorKey]endpointstate.LearnedProfile
	states   map[string]observed // last reports by endpoint, without unknown ones
	turns    map[bandKey]turns.Line
	plane    *placement.DataPlane
	round    uint64 // number of calls of backlogs
	out      []*placement.Backlog
}

// asked is the last report of this process's work at an endpoint.
type asked struct {
	endpointstate.Backlog
	round uint64 // round in which the endpoint was last seen
}

// wants is the last report of a model for which requests wait.
type wants struct {
	requests int
	unusable []string
}

func newReporter() *reporter {
	return &reporter{
		waiting: make(map[objects.ModelKey]wants), inFlight: make(map[endpointstate.CopyKey]int64),
		leaving: make(map[string]endpointstate.Leaving),
		asked:   make(map[string]asked), taught: make(map[endpointstate.AcceleratorKey]endpointstate.LearnedProfile),
		states: make(map[string]observed), turns: make(map[bandKey]turns.Line),
	}
}

// wants creates the report of the models for which requests wait. Unusable returns the endpoints at
// which a model's copies cannot be used.
func (t *reporter) wants(all []flow.WaitingModel, unusable func(objects.ModelKey) []string, now time.Time) []*placement.Wanted {
	var out []*placement.Wanted
	waits := make(map[objects.ModelKey]bool, len(all))
	for _, w := range all {
		waits[w.Key] = true
		is := wants{w.Requests, unusable(w.Key)}
		if was, ok := t.waiting[w.Key]; ok && was.requests == is.requests && slices.Equal(was.unusable, is.unusable) {
			continue
		}
		t.waiting[w.Key] = is
		out = append(out, &placement.Wanted{
			Key: placementproto.Model(w.Key), Requests: uint32(is.requests), Unusable: is.unusable,
			WaitedMs: uint64(max(0, now.Sub(w.Since)).Milliseconds()),
		})
	}
	for key := range t.waiting {
		if !waits[key] {
			delete(t.waiting, key)
			out = append(out, &placement.Wanted{Key: placementproto.Model(key)})
		}
	}
	return out
}

// flies creates the report of requests in flight. The report always contains closed copies and
// copies without requests; it contains other copies only if all is true.
func (t *reporter) flies(now map[endpointstate.CopyKey]endpointstate.InFlightCount, all bool) []*placement.InFlight {
	var out []*placement.InFlight
	for k, is := range now {
		if t.inFlight[k] != is.Requests && (all || is.Closed) {
			t.inFlight[k] = is.Requests
			out = append(out, &placement.InFlight{Copy: placementproto.Copy(k), Requests: uint32(is.Requests)})
		}
	}
	for k := range t.inFlight {
		if now[k].Requests == 0 {
			delete(t.inFlight, k)
			out = append(out, &placement.InFlight{Copy: placementproto.Copy(k)})
		}
	}
	return out
}

// leaves creates the report of endpoints that will end soon, and of endpoints that were reported so
// but will not end.
func (t *reporter) leaves(all map[string]endpointstate.Leaving, now time.Time) []*placement.Leaving {
	var out []*placement.Leaving
	for address, is := range all {
		if t.leaving[address] == is {
			continue
		}
		t.leaving[address] = is
		out = append(out, placementproto.Leaving(address, is, now))
	}
	for address := range t.leaving {
		if _, ok := all[address]; !ok {
			delete(t.leaving, address)
			out = append(out, &placement.Leaving{Endpoint: address})
		}
	}
	return out
}

// tolerance is the maximum error of a reported end of prefill. A step of an engine takes about 20
// ms.
const tolerance = 5 * time.Millisecond

// backlogs returns the report of work at endpoints, if it changed by more than the passage of time
// explains. The result is valid until the next call.
func (t *reporter) backlogs(each func(visit func(endpointstate.Backlog)), now time.Time) []*placement.Backlog {
	t.round++
	n, there := 0, 0
	tell := func(b endpointstate.Backlog) {
		if n == len(t.out) {
			t.out = append(t.out, new(placement.Backlog))
		}
		wireBacklog(t.out[n], b, now)
		n++
	}
	each(func(is endpointstate.Backlog) {
		was, told := t.asked[is.Endpoint]
		changed := !same(is, was.Backlog, now)
		if changed {
			was.Backlog = is
			tell(is)
		}
		switch {
		case !is.Nothing():
			was.round = t.round
			t.asked[is.Endpoint] = was
			there++
		case told:
			delete(t.asked, is.Endpoint)
		}
	})
	if there < len(t.asked) { // an endpoint was removed
		for endpoint, was := range t.asked {
			if was.round != t.round {
				delete(t.asked, endpoint)
				tell(endpointstate.Backlog{Endpoint: endpoint})
			}
		}
	}
	return t.out[:n]
}

// same is true if two Backlogs are equivalent at time now.
func same(a, b endpointstate.Backlog, now time.Time) bool {
	return a.Requests == b.Requests && a.Beside == b.Beside && a.Urgency == b.Urgency && a.Tokens == b.Tokens &&
		(left(a, now)-left(b, now)).Abs() <= tolerance
}

// left is the remaining prefill time of a backlog.
func left(b endpointstate.Backlog, now time.Time) time.Duration {
	return time.Duration(max(0, b.Through-now.UnixNano()))
}

func wireBacklog(to *placement.Backlog, b endpointstate.Backlog, now time.Time) {
	to.Endpoint, to.Requests, to.PrefillUs = b.Endpoint, uint32(max(0, b.Requests)), uint64(left(b, now).Microseconds())
	to.BesidePs, to.Urgency, to.Tokens = uint64(max(0, b.Beside)), uint64(max(0, b.Urgency)), uint64(max(0, b.Tokens))
}

// usage returns the report of the use of models. Full contains, by model, the requests that waited
// for copies at their concurrency limit.
func usage(used map[objects.ModelKey]endpointstate.ModelUse, full map[objects.ModelKey]int, passed time.Duration,
	now time.Time,
) []*placement.Usage {
	var out []*placement.Usage
	for k, u := range used {
		out = append(out, &placement.Usage{
			Key: placementproto.Model(k), Requests: uint32(u.Requests), IdleMs: uint64(max(0, now.Sub(u.Last)).Milliseconds()),
			WaitedMs: waitedMs(full[k], passed),
		})
	}
	for k, n := range full {
		if _, told := used[k]; !told { // no request for the model has begun
			out = append(out, &placement.Usage{Key: placementproto.Model(k), WaitedMs: waitedMs(n, passed)})
		}
	}
	return out
}

func waitedMs(requests int, passed time.Duration) uint64 {
	return uint64(requests) * uint64(passed.Milliseconds()) //nolint:gosec // neither is below 0
}

func missing(keys []endpointstate.CopyKey) []*placement.CopyKey {
	var out []*placement.CopyKey
	for _, k := range keys {
		out = append(out, placementproto.Copy(k))
	}
	return out
}
