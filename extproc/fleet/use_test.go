package fleet_test

import (
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
)

// The scraper learns of each request that begins at an endpoint, also after a retry elsewhere, and
// of the first requests that other processes report. At that time the request is counted.
func TestUseOfEndpointsIsReported(t *testing.T) {
	f, _ := started()
	view(f)
	var used []string
	f.Use.Notify(func(address string) { used = append(used, address) })
	expect := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(used, want) {
			t.Errorf("%s: %v are used, want %v", what, used, want)
		}
		used = nil
	}
	d := decide(t, f, "sql")
	flight := f.Begin(d)
	expect("a request begins", d.Endpoint.Address)
	other := a
	if d.Endpoint.Address == a {
		other = b
	}
	f.Moved(flight, other)
	expect("it is retried elsewhere", other)
	flight.End()
	expect("it ends")
	tell := func(requests int64) {
		f.Update(fleet.Later, func(s *endpointstate.State, now time.Time) {
			s.SetPeers([]endpointstate.Backlog{{Endpoint: a, Requests: requests}}, now)
		})
	}
	tell(3)
	expect("another process has requests", a)
	tell(2)
	expect("it still has requests")
}
