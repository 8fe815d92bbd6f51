package fleet

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// A thousand endpoints change their state every second for a minute. The log has a few hundred
// lines, counts the others, and in the end has the last state of each endpoint.
func TestFlappingEndpointsDoNotFloodTheLog(t *testing.T) {
	var out bytes.Buffer
	l := stateLog{log: slog.New(slog.NewTextHandler(&out, nil))}
	now := time.Unix(1e9, 0)
	const endpoints = 1000
	move := func(i int, from, to pick.State, reason endpointstate.Reason) {
		l.moved(endpointstate.Move{
			Pool: objects.Name{Namespace: "ns", Name: "p"}, Address: fmt.Sprint("e", i), From: from,
			To: endpointstate.Standing{State: to, Since: now, Reason: reason},
		}, now)
	}
	for second := range 61 {
		now = now.Add(time.Second)
		for i := range endpoints {
			if second%2 == 0 {
				move(i, pick.Healthy, pick.Out, endpointstate.ConnectionRefused)
			} else {
				move(i, pick.Out, pick.Healthy, "")
			}
		}
		l.flush(now)
	}
	if lines := strings.Count(out.String(), "\n"); lines > 300 {
		t.Errorf("%d lines in a minute", lines)
	}
	if !strings.Contains(out.String(), `msg="endpoints change their states often; some changes are not logged" suppressed=`) {
		t.Error("the suppressed lines are not counted")
	}
	for range 2000 { // now nothing changes any more
		now = now.Add(time.Second)
		l.flush(now)
	}
	last := make(map[string]string)
	for line := range strings.Lines(out.String()) {
		if _, endpoint, ok := strings.Cut(line, " endpoint="); ok {
			endpoint, _, _ = strings.Cut(endpoint, " ")
			last[endpoint] = line
		}
	}
	for endpoint, line := range last {
		if !strings.Contains(line, `msg="endpoint is out"`) {
			t.Fatalf("the last line of %s is %s", endpoint, line)
		}
	}
	if len(last) != endpoints || len(l.members) != 0 || l.suppressed != 0 {
		t.Errorf("%d endpoints have a line; %d are kept, %d lines are not counted", len(last), len(l.members), l.suppressed)
	}
}

// A line contains an endpoint's latest error only if the error is recent. An old one does not
// explain the change.
func TestOldErrorsDoNotExplainChanges(t *testing.T) {
	now := time.Unix(1e9, 0)
	for age, named := range map[time.Duration]bool{faultAge - time.Second: true, faultAge: false} {
		var out bytes.Buffer
		l := stateLog{log: slog.New(slog.NewTextHandler(&out, nil))}
		l.moved(endpointstate.Move{
			Address: "e", From: pick.Healthy, To: endpointstate.Standing{State: pick.Suspect, Since: now, Reason: endpointstate.QueueFull},
			Fault: endpointstate.Fault{At: now.Add(-age), Kind: "error", Status: 500},
		}, now)
		if got := out.String(); strings.Contains(got, "status=500") != named || !strings.Contains(got, "reason=queue_full") {
			t.Errorf("after an error %v ago: %s", age, got)
		}
	}
}
