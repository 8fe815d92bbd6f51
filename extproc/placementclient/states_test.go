package placementclient

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
)

// The state of an endpoint is reported when it is known and whenever it has changed, with the time
// since the change. An endpoint that is gone is reported once, and then nothing of it is kept.
func TestStateIsReportedWhenItChanges(t *testing.T) {
	start := time.Unix(1e9, 0)
	tell := newReporter()
	type states = []*placement.EndpointState
	const refuses = "connection_refused"
	for i, c := range []struct {
		at   time.Duration
		has  []endpointstate.Condition
		want states
	}{
		{0, []endpointstate.Condition{{Endpoint: "a", State: pick.Out, Reason: "it was never scraped"}}, nil},
		{
			time.Second,
			[]endpointstate.Condition{{Endpoint: "a", Known: true}},
			states{{Endpoint: "a", State: placement.EndpointState_SERVING}},
		},
		{2 * time.Second, []endpointstate.Condition{{Endpoint: "a", Known: true}}, nil},
		{
			3 * time.Second,
			[]endpointstate.Condition{
				{Endpoint: "a", Known: true, State: pick.Out, Reason: refuses}, {Endpoint: "b", Known: true, State: pick.Stale},
			},
			states{
				{Endpoint: "a", State: placement.EndpointState_OUT, Reason: refuses},
				{Endpoint: "b", State: placement.EndpointState_SUSPECT},
			},
		},
		{ // another reason for the same state
			5 * time.Second,
			[]endpointstate.Condition{
				{Endpoint: "a", Known: true, State: pick.Lost, Reason: "silent"}, {Endpoint: "b", Known: true, State: pick.Suspect},
			},
			states{{Endpoint: "a", State: placement.EndpointState_OUT, Reason: "silent", ForMs: 2000}},
		},
		{6 * time.Second, []endpointstate.Condition{{Endpoint: "b", Known: true, State: pick.Suspect}}, states{{Endpoint: "a"}}},
		{7 * time.Second, nil, states{{Endpoint: "b"}}},
		{8 * time.Second, nil, nil},
	} {
		got := tell.observes(func(visit func(endpointstate.Condition)) {
			for _, is := range c.has {
				visit(is)
			}
		}, start.Add(c.at))
		if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
			t.Errorf("report %d (-want +got):\n%s", i, diff)
		}
	}
	if len(tell.states) > 0 {
		t.Errorf("it keeps %v", tell.states)
	}
}

// A report has at most 2,000 endpoints; the next one has the others.
func TestReportsOfStatesAreLimited(t *testing.T) {
	tell := newReporter()
	each := func(visit func(endpointstate.Condition)) {
		for i := range 3 * maxStates / 2 {
			visit(endpointstate.Condition{Endpoint: strconv.Itoa(i), Known: true})
		}
	}
	none := func(func(endpointstate.Condition)) {}
	var got []int
	for range 3 {
		got = append(got, len(tell.observes(each, time.Now())))
	}
	for range 3 {
		got = append(got, len(tell.observes(none, time.Now())))
	}
	if want := []int{maxStates, maxStates / 2, 0, maxStates, maxStates / 2, 0}; !cmp.Equal(got, want) {
		t.Errorf("the reports have %v endpoints, want %v", got, want)
	}
}

// Which requests reach the process is reported at the start of a stream and when it changes.
func TestDataPlaneIsReportedWhenItChanges(t *testing.T) {
	tell := newReporter()
	for i, c := range []struct {
		is   *placement.DataPlane
		told bool
	}{
		{&placement.DataPlane{Picker: true}, true},
		{&placement.DataPlane{Picker: true}, false},
		{&placement.DataPlane{Picker: true, Standalone: true}, true},
		{&placement.DataPlane{}, true},
		{&placement.DataPlane{}, false},
	} {
		if got := tell.serves(c.is); (got != nil) != c.told {
			t.Errorf("report %d is %v", i, got)
		}
	}
}
