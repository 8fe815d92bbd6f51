package placementclient

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/placementproto"
)

// A backlog is reported again if it differs from what the last report would be after the elapsed
// time. It is also reported when its endpoint is gone.
func TestBacklogIsReportedWhenItChanges(t *testing.T) {
	start := time.Unix(1e9, 0)
	tell := newReporter()
	at := func(endpoint string, requests int64, through time.Duration) endpointstate.Backlog {
		return endpointstate.Backlog{
			Endpoint: endpoint, Requests: requests, Through: start.Add(through).UnixNano(), Beside: 2, Urgency: 3,
			Tokens: 4,
		}
	}
	wire := func(endpoint string, requests uint32, left time.Duration) *placement.Backlog {
		return &placement.Backlog{
			Endpoint: endpoint, Requests: requests, PrefillUs: uint64(left.Microseconds()), BesidePs: 2, Urgency: 3,
			Tokens: 4,
		}
	}
	for i, c := range []struct {
		now  time.Duration
		has  []endpointstate.Backlog
		want []*placement.Backlog
	}{
		{0, []endpointstate.Backlog{at("a", 1, time.Second), {Endpoint: "b"}}, []*placement.Backlog{wire("a", 1, time.Second)}},
		{500 * time.Millisecond, []endpointstate.Backlog{at("a", 1, time.Second), {Endpoint: "b"}}, nil},
		{
			500 * time.Millisecond,
			[]endpointstate.Backlog{at("a", 1, 1004*time.Millisecond), at("b", 1, 0)},
			[]*placement.Backlog{wire("b", 1, 0)},
		},
		{
			500 * time.Millisecond,
			[]endpointstate.Backlog{at("a", 1, 1008*time.Millisecond), at("b", 1, 0)},
			[]*placement.Backlog{wire("a", 1, 508*time.Millisecond)},
		},
		{2 * time.Second, []endpointstate.Backlog{at("a", 1, 1500*time.Millisecond), at("b", 1, 1900*time.Millisecond)}, nil},
		{2 * time.Second, []endpointstate.Backlog{at("b", 1, 0)}, []*placement.Backlog{{Endpoint: "a"}}},
		{2 * time.Second, []endpointstate.Backlog{{Endpoint: "a"}, {Endpoint: "b"}}, []*placement.Backlog{{Endpoint: "b"}}},
		{2 * time.Second, []endpointstate.Backlog{{Endpoint: "a"}, {Endpoint: "b"}}, nil},
	} {
		each := func(visit func(endpointstate.Backlog)) {
			for _, b := range c.has {
				visit(b)
			}
		}
		got := tell.backlogs(each, start.Add(c.now))
		if len(got) == 0 {
			got = nil
		}
		if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
			t.Errorf("report %d (-want +got):\n%s", i+1, diff)
		}
	}
	if len(tell.asked) != 0 {
		t.Errorf("%v is kept for endpoints without work", tell.asked)
	}
}

// The waiting time of a model's requests is reported together with the model's use, or without it
// if no request began.
func TestWaitingTimeIsReportedWithUse(t *testing.T) {
	now := time.Unix(1e9, 0)
	key := func(id string) objects.ModelKey {
		return objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "p"}, ID: id}
	}
	got := usage(
		map[objects.ModelKey]endpointstate.ModelUse{
			key("both"): {Requests: 3, Last: now.Add(-time.Second)},
			key("used"): {Requests: 1, Last: now},
		},
		map[objects.ModelKey]int{key("both"): 2, key("waits"): 5}, 1500*time.Millisecond, now,
	)
	slices.SortFunc(got, func(a, b *placement.Usage) int { return strings.Compare(a.GetKey().GetModel(), b.GetKey().GetModel()) })
	want := []*placement.Usage{
		{Key: placementproto.Model(key("both")), Requests: 3, IdleMs: 1000, WaitedMs: 3000},
		{Key: placementproto.Model(key("used")), Requests: 1},
		{Key: placementproto.Model(key("waits")), WaitedMs: 7500},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}
