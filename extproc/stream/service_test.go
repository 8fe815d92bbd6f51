package stream_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/decisions"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/objects"
)

// The length of an answer is learned for its route and tenant although the request did not wait:
// behind Headgate's own Envoy from the access log, which reports the number of the decision, and
// behind another gateway from the response.
func TestLengthsAreLearnedFromEveryAnswer(t *testing.T) {
	f := newFleetWith(fleet.Config{}, func(s *objects.Set) {
		for i := range s.Routes {
			s.Routes[i].Spec.TenantHeader = "x-tenant-id"
		}
	})
	held := flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
	log := decisions.New()
	server, _ := newServer(t, f, func(c *stream.Config) { c.Flow, c.Decisions, c.Settings.Flow = held, log, true })
	key := func(tenant string) uint64 { return hash.Fold(hash.Of("ns/for-llama"), hash.Of(tenant)) }
	for i, tenant := range []string{"a", "b"} {
		x, m := llama(t, server, ":path=/v1/chat/completions x-tenant-id="+tenant, "")
		held.Answered(log.Number(idOf(m)), float64(100*(i+1)))
		x.End(time.Now())
	}
	x := server.Exchange(stream.Gateway, "base-picker", 9002)
	decide(t, x, "headers :method=POST :path=/v1/chat/completions x-tenant-id=c mode=BUFFERED shown=BUFFERED",
		`body {"model":"llama","messages":[]}`, "response :status=200 content-type=application/json",
		`answer {"usage":{"prompt_tokens":1000,"completion_tokens":300}}`)
	x.End(time.Now())
	for tenant, want := range map[string]float64{"a": 100, "b": 200, "c": 300, "d": 7} {
		if got := held.Expected(key(tenant), 7, 0); got != want {
			t.Errorf("an answer for tenant %s is expected to have %v tokens, want %v", tenant, got, want)
		}
	}
}

// Only answers that an engine completed teach their length.
func TestLengthOf(t *testing.T) {
	tokens := engine.Known(50)
	for _, c := range []struct {
		is   outcome.Outcome
		want float64
	}{
		{outcome.Outcome{Status: 200, Completion: tokens}, 50},
		{outcome.Outcome{Status: 200}, -1},
		{outcome.Outcome{Status: 200, Completion: tokens, Failure: outcome.ClientGone}, -1},
		{outcome.Outcome{Status: 400, Completion: tokens}, -1},
		{outcome.Outcome{Status: 503, Completion: tokens, ByExtproc: true}, -1},
	} {
		if got := stream.LengthOf(&c.is); got != c.want {
			t.Errorf("%+v: %v, want %v", c.is, got, c.want)
		}
	}
}
