package fleet_test

import (
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// A lease is extended when its request makes progress. Renewing an unknown lease does not create a
// lease.
func TestLeaseIsRenewed(t *testing.T) {
	f, c := started()
	view(f)
	f.Renew("early")
	for _, id := range []string{"on", "silent"} {
		f.Lease(id, f.Begin(decide(t, f, "sql")), time.Minute)
	}
	for range 3 {
		c.advance(59 * time.Second)
		f.Renew("on")
		f.Renew("nobody's")
		f.EndLeases()
	}
	if l := f.Leases(); l.Current != 1 || l.Expired != 1 {
		t.Errorf("of one request with progress and one without: %+v", l)
	}
	c.advance(61 * time.Second)
	f.Renew("silent")
	f.EndLeases()
	if l := f.Leases(); l.Current != 0 || l.Expired != 2 {
		t.Errorf("a minute after its last progress: %+v", l)
	}
	// A renewed lease is not treated as new: a scrape that does not count its request any more ends
	// it.
	f.Lease("old", f.Begin(decide(t, f, "sql")), time.Hour)
	c.advance(2 * time.Second)
	f.Renew("old")
	for _, address := range []string{a, b} {
		see(f, address, engine.Load{Running: engine.Known(0), Waiting: engine.Known(0)})
	}
	f.EndLeases()
	if l := f.Leases(); l.Current != 0 || l.Inferred != 1 {
		t.Errorf("after scrapes without requests: %+v", l)
	}
}

// Outcomes affect the state of the endpoint, whichever of its ports Envoy used.
func TestOutcomesCountForEndpoints(t *testing.T) {
	set := setOf("pod-", "10.0.0.1", "10.0.0.2")
	grpc := int32(9000)
	settings := v1alpha1.PoolSettings{}
	settings.Namespace, settings.Name, settings.Spec.PoolRef.Name = "ns", "pool", "pool"
	settings.Spec.Ports = &v1alpha1.Ports{GRPC: &grpc}
	set.Settings = append(set.Settings, settings)
	f := fleet.New(fleet.Config{})
	f.SetWorld(objects.Build(set))
	f.Publish()
	at := func() []string { return []string{"10.0.0.1:9000", b, "10.9.9.9:9000"} }
	o := f.Attribute(outcome.Outcome{Endpoint: "10.0.0.2:9000", Elsewhere: at(), Stopping: at(), Unreached: at(), Missing: at()})
	if o.Endpoint != b {
		t.Errorf("it is of %s", o.Endpoint)
	}
	for i, got := range [][]string{o.Elsewhere, o.Stopping, o.Unreached, o.Missing} {
		if !slices.Equal(got, []string{a, b, "10.9.9.9:9000"}) {
			t.Errorf("%d: they are %v", i, got)
		}
	}
}
