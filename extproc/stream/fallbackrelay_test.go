package stream_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// A request at its fallback that the relay sends again is still at its fallback: it waits in the
// band of its route, for its tenant, and has no other fallback.
func TestRelayKeepsTheFallback(t *testing.T) {
	f := newFleetWith(fleet.Config{Placed: true}, func(s *objects.Set) {
		r := aRoute("tuned", "empty", "sql-v2")
		r.Spec.Priority, r.Spec.TenantHeader, r.Spec.Fallback = 5, "x-tenant-id", &v1alpha1.Fallback{Pool: "base"}
		s.Routes = append(s.Routes, r)
	})
	f.ApplyPlacement(news(t, f, []string{"loaded=sql-v2@" + address}))
	sealer := relayTokens(t, 'k')
	server, _ := newServer(t, f, func(c *stream.Config) {
		c.Flow = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
		c.Relay, c.RelayTokens = "/run/inner.sock", sealer
		c.Settings.EndpointsPerRequest, c.Settings.RequestsPerEndpoint = 3, 1
	})
	const body = `body {"model":"tuned"}`
	first := server.ExchangeAt("", objects.Name{}, nil).TakenAt("back")
	to, e := sent(t, first, sealer, post+" x-tenant-id=a", body)
	if to != address+`,/run/inner.sock {"model":"sql-v2"}` || e.Kind != relaytoken.Again || e.Fallback != "base" {
		t.Fatalf("it goes to %s with %+v", to, e)
	}
	again := relaytoken.Request{Kind: relaytoken.Sent, Last: true, Models: e.Models, Fallback: e.Fallback}
	second := server.ExchangeAt("", objects.Name{}, nil).TakenAt("back")
	to, _ = sent(t, second, sealer, post+" x-tenant-id=a x-headgate-relay-token="+sealer.Seal(again), body)
	path := second.Path()
	if to != "waits for ns/base/sql-v2, 17 bytes, at most 5m0s" || path.Band != 5 || path.Route.Name != "for-tuned" || path.Tenant == 0 {
		t.Errorf("the second time it %s, as %+v", to, path)
	}
	out := second.Expire()
	if got := render(t, out[0]); !strings.HasPrefix(got, "reply: 504 details=headgate_load_timeout") || len(out) != 1 {
		t.Errorf("when its time is over: %s", got)
	}
	first.End(time.Now())
	second.End(time.Now())
}
