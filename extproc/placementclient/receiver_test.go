package placementclient

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
)

func TestFirstUpdateIsComplete(t *testing.T) {
	key := func(id string) *placement.ModelKey { return &placement.ModelKey{Pool: "ns/pool", Model: id} }
	at := func(id string) *placement.CopyKey { return &placement.CopyKey{Key: key(id), Endpoint: "a"} }
	model := func(id string) objects.ModelKey {
		return objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "pool"}, ID: id}
	}
	copyOf := func(id string) endpointstate.CopyKey {
		return endpointstate.CopyKey{ModelKey: model(id), Endpoint: "a"}
	}
	now := time.Now()
	h := newReceiver()
	for _, u := range []*placement.Update{
		{
			Endpoints: &placement.Endpoints{Addresses: []string{"b"}},
			Copies:    []*placement.Copy{{Copy: at("m"), State: placement.Copy_LOADED}},
		},
		{Endpoints: &placement.Endpoints{Addresses: []string{"a"}}, InFlight: []*placement.InFlight{{Copy: at("m"), Requests: 3}}},
	} {
		if _, ok := h.receive(u, now); ok {
			t.Fatalf("%v gives an update", u)
		}
	}
	n, ok := h.receive(&placement.Update{
		Complete: true,
		Copies: []*placement.Copy{
			{Copy: at("n"), State: placement.Copy_LOADING},
			{Copy: &placement.CopyKey{Key: &placement.ModelKey{Pool: "nowhere"}}},
		},
	}, now)
	want := newNews()
	want.All, want.Endpoints = true, map[string]bool{"a": true}
	want.Copies[copyOf("m")], want.Copies[copyOf("n")] = endpointstate.Loaded, endpointstate.Loading
	want.Others[copyOf("m")] = 3
	if diff := cmp.Diff(want, n); !ok || diff != "" {
		t.Errorf("the complete state (want - got +):\n%s", diff)
	}
	n, ok = h.receive(&placement.Update{
		Copies:     []*placement.Copy{{Copy: at("m"), State: placement.Copy_UNLOADING}, {Copy: at("n")}},
		Failures:   []*placement.Failure{{Key: key("n"), Reason: "load_failed"}},
		Registered: []*placement.Registered{{Key: key("o")}, {Key: key("p"), Gone: true}},
		Leaving: []*placement.Leaving{
			{Endpoint: "a", StoppingMs: new(uint64(200))},
			{Endpoint: "b", Terminating: true, MigratesMs: new(uint64(3000))},
			{Endpoint: "c"},
		},
		Runtimes: []*placement.Runtime{{Endpoint: "a", Methods: []string{"a.S/One 1", "*"}}, {Endpoint: "b"}},
		Vmodels: []*placement.VModel{
			{Key: key("v"), Active: "m", Canary: "n", Percent: 10},
			{Key: key("w")},
			{Key: &placement.ModelKey{Pool: "ns/pool"}, Active: "m"},
			{Key: &placement.ModelKey{Pool: "nowhere", Model: "v"}, Active: "m"},
			{Active: "m"},
		},
	}, now)
	want = newNews()
	want.Copies[copyOf("m")], want.Copies[copyOf("n")] = endpointstate.Unloading, endpointstate.Gone
	want.Failures[model("n")] = "load_failed"
	want.Registered[model("o")], want.Registered[model("p")] = true, false
	want.Leaving["a"], want.Leaving["b"] = endpointstate.Leaving{Stopping: now.Add(-200 * time.Millisecond)},
		endpointstate.Leaving{Terminating: true, Migrates: now.Add(3 * time.Second)}
	want.Leaving["c"] = endpointstate.Leaving{}
	want.Methods["a"], want.Methods["b"] = "a.S/One 1\n*", ""
	want.VModels[model("v")], want.VModels[model("w")] = endpointstate.Switch{Active: "m", Canary: "n", Percent: 10}, endpointstate.Switch{}
	if diff := cmp.Diff(want, n); !ok || diff != "" {
		t.Errorf("the changes (want - got +):\n%s", diff)
	}
}

// An Update that contains only backlogs and learned profiles of other processes needs no
// acknowledgement of its own; any other Update does.
func TestUpdatesWithoutAcknowledgement(t *testing.T) {
	backlogs := []*placement.Backlog{{Endpoint: "a"}}
	for u, want := range map[*placement.Update]bool{
		{}:                                      false,
		{Backlogs: backlogs}:                    true,
		{Lessons: make([]*placement.Lesson, 1)}: true,
		{Backlogs: backlogs, Complete: true}:    false,
		{Backlogs: backlogs, Endpoints: &placement.Endpoints{}}:            false,
		{Backlogs: backlogs, Copies: make([]*placement.Copy, 1)}:           false,
		{Backlogs: backlogs, Failures: make([]*placement.Failure, 1)}:      false,
		{Backlogs: backlogs, InFlight: make([]*placement.InFlight, 1)}:     false,
		{Backlogs: backlogs, Registered: make([]*placement.Registered, 1)}: false,
		{Backlogs: backlogs, Vmodels: make([]*placement.VModel, 1)}:        false,
		{Backlogs: backlogs, Leaving: make([]*placement.Leaving, 1)}:       false,
		{Backlogs: backlogs, Runtimes: make([]*placement.Runtime, 1)}:      false,
		{Backlogs: backlogs, Share: &placement.Share{Processes: 1}}:        false,
	} {
		if got := onlyOfOthers(u); got != want {
			t.Errorf("%v: %v, want %v", u, got, want)
		}
	}
}

// If the reason why an endpoint is about to stop changes, that is reported once. If the endpoint
// then does not stop, that is also reported once.
func TestLeavingEndpointsAreReportedOnce(t *testing.T) {
	now := time.Now()
	tell := newReporter()
	stops := func(ago time.Duration) endpointstate.Leaving { return endpointstate.Leaving{Stopping: now.Add(-ago)} }
	for i, c := range []struct {
		all  map[string]endpointstate.Leaving
		want []*placement.Leaving
	}{
		{map[string]endpointstate.Leaving{"a": stops(time.Second)}, []*placement.Leaving{{Endpoint: "a", StoppingMs: new(uint64(1000))}}},
		{map[string]endpointstate.Leaving{"a": stops(time.Second)}, nil},
		{map[string]endpointstate.Leaving{"a": stops(0)}, []*placement.Leaving{{Endpoint: "a", StoppingMs: new(uint64(0))}}},
		{
			map[string]endpointstate.Leaving{"a": {Terminating: true, Migrates: now.Add(time.Second)}},
			[]*placement.Leaving{{Endpoint: "a", Terminating: true, MigratesMs: new(uint64(1000))}},
		},
		{map[string]endpointstate.Leaving{"a": {Terminating: true}}, []*placement.Leaving{{Endpoint: "a", Terminating: true}}},
		{nil, []*placement.Leaving{{Endpoint: "a"}}},
		{nil, nil},
	} {
		if diff := cmp.Diff(c.want, tell.leaves(c.all, now), protocmp.Transform()); diff != "" {
			t.Errorf("report %d (-want +got):\n%s", i+1, diff)
		}
	}
}
