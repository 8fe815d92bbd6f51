package fleet_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
)

// Each change of an endpoint's state is one line, with what the engine answered. The engine's
// message appears only if the operator asks for it.
func TestChangesOfStatesAreLogged(t *testing.T) {
	for _, asked := range []bool{false, true} {
		var out bytes.Buffer
		now := time.Unix(1e9, 0)
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		f := fleet.New(fleet.Config{Now: func() time.Time { return now }, Log: log, LogEngineErrors: asked})
		f.SetWorld(world("10.0.0.1"))
		pass := func() {
			f.Update(fleet.Now, func(s *endpointstate.State, _ time.Time) { s.Age() })
			now = now.Add(time.Second / 2)
		}
		serve := func() { see(f, a, engine.Load{}); pass() }
		pass()
		serve()
		if out.Len() > 0 {
			t.Errorf("an endpoint that starts logs %s", &out)
		}
		f.Observe(outcome.Outcome{
			Pool: "ns/pool", Endpoint: a, Status: 500, ErrorType: "InternalServerError", ErrorCode: "500",
			ErrorMessage: "a secret prompt", Began: now,
		})
		serve()
		f.Observe(outcome.Outcome{Pool: "ns/pool", Endpoint: a, Status: 200, Began: now})
		serve()
		f.Update(fleet.Now, func(s *endpointstate.State, now time.Time) {
			s.Refused(a, now)
			endpointstate.Faulted(s, a, endpointstate.Fault{At: now, Kind: "scrape_refused"})
		})
		pass()
		serve()
		for range 3 {
			pass()
		}
		want := `level=WARN msg="endpoint is suspect" endpoint=10.0.0.1:8000 pool=ns/pool was=healthy reason=requests_fail kind=error status=500 error_type=InternalServerError error_code=500
level=INFO msg="endpoint is healthy again" endpoint=10.0.0.1:8000 pool=ns/pool was=suspect
level=WARN msg="endpoint is out" endpoint=10.0.0.1:8000 pool=ns/pool was=healthy reason=connection_refused kind=scrape_refused
level=INFO msg="endpoint is healthy again" endpoint=10.0.0.1:8000 pool=ns/pool was=out
level=WARN msg="endpoint is stale" endpoint=10.0.0.1:8000 pool=ns/pool was=healthy reason=scrapes_unanswered kind=scrape_timeout
`
		if asked {
			want = strings.Replace(want, "error_code=500", `error_code=500 error_message="a secret prompt"`, 1)
		}
		if got := out.String(); got != want {
			t.Errorf("the log is\n%s\nwant\n%s", got, want)
		}
	}
}

// A pool whose policy latency waits for measurements has one line.
func TestWaitForMeasurementsIsLoggedOnce(t *testing.T) {
	for _, rule := range []pick.Rule{pick.Latency, pick.Proposal} {
		var out bytes.Buffer
		used := settings.Default()
		used.Policy.Rule = rule
		f := fleet.New(fleet.Config{Log: slog.New(slog.NewTextHandler(&out, nil)), Settings: used})
		f.LogWaiting()
		if out.Len() > 0 {
			t.Errorf("without pools the log is %s", &out)
		}
		f.SetWorld(world("10.0.0.1"))
		for range 3 {
			f.LogWaiting()
		}
		want := 0
		if rule == pick.Latency {
			want = 1
		}
		if got := strings.Count(out.String(), `msg="policy latency waits for measurements: policy proposal decides until then" pool=ns/pool`); got != want {
			t.Errorf("policy %v: %d lines, want %d: %s", rule, got, want, &out)
		}
	}
}
