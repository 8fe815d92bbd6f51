package stream_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

var nobody = objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "base"}, ID: "nobody"}

// queueing returns a fleet with control, the flow that queues its requests, and a client.
func queueing(t *testing.T, most time.Duration, max int) (*fleet.Fleet, *flow.Flow, extprocv3.ExternalProcessorClient) {
	t.Helper()
	f, held, server := queueingServer(t, most, max)
	return f, held, dialServer(t, server, stream.Own)
}

// queueingServer returns a fleet with control, the flow that queues its requests, and the server.
func queueingServer(t *testing.T, most time.Duration, max int) (*fleet.Fleet, *flow.Flow, *stream.Server) {
	t.Helper()
	var held *flow.Flow
	f := newFleetOfVModels(fleet.Config{Published: func(v *endpointstate.View) {
		if held != nil {
			held.Published(v)
		}
	}, Freed: func(address, model string) { held.Freed(address, model) }})
	held = flow.New(flow.Config{View: f.View, MaxQueued: max, MaxBytes: 1 << 20})
	f.ApplyPlacement(news(t, f, nil))
	server, _ := newServer(t, f, func(c *stream.Config) { c.Flow, c.Settings.QueueTimeout = held, most })
	return f, held, server
}

// ask begins a request for the adapter that has no copy. It returns the stream when the request is
// decided or waits.
func ask(ctx context.Context, t *testing.T, client extprocv3.ExternalProcessorClient) (extprocv3.ExternalProcessor_ProcessClient,
	*extprocv3.ProcessingResponse,
) {
	t.Helper()
	return askFor(ctx, t, client, "missing")
}

// askFor is like ask, but for any model.
func askFor(ctx context.Context, t *testing.T, client extprocv3.ExternalProcessorClient,
	model string,
) (extprocv3.ExternalProcessor_ProcessClient, *extprocv3.ProcessingResponse) {
	t.Helper()
	s, err := client.Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var last *extprocv3.ProcessingResponse
	for _, line := range []string{"headers :method=POST :path=/v1/completions", fmt.Sprintf(`body {"model":%q}`, model)} {
		if err := s.Send(message(t, line)); err != nil {
			t.Fatal(err)
		}
		if last, err = s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	return s, last
}

func decided(t *testing.T, s extprocv3.ExternalProcessor_ProcessClient) string {
	t.Helper()
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return render(t, m)
}

func awaitQueued(t *testing.T, held *flow.Flow, want int64) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(5 * time.Second); ; {
		n, _ := held.Queued()
		if n == want {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%d requests wait, want %d", n, want)
		}
	}
}

// While control is silent, requests that need a load are refused at once, and so are those that
// wait.
func TestRequestsDoNotWaitForALostControl(t *testing.T) {
	_, held, client := queueing(t, time.Minute, 100)
	s, _ := ask(t.Context(), t, client)
	awaitQueued(t, held, 1)
	held.ControlLost(true)
	want := []string{"503", "retry-after=10", "control_unavailable"}
	for what, got := range map[string]string{"waiting": decided(t, s), "new": render(t, second(ask(t.Context(), t, client)))} {
		for _, part := range want {
			if !strings.Contains(got, part) {
				t.Errorf("the %s request gets %s, want %q", what, got, part)
			}
		}
	}
	awaitQueued(t, held, 0)
}

func second[A, B any](_ A, b B) B { return b }

// One client disconnects while it waits, and another when its request is called. The other requests
// are served.
func TestRequestsWaitForTheirModel(t *testing.T) {
	f, held, client := queueing(t, time.Minute, 100)
	leaving, leave := context.WithCancel(t.Context())
	_, m := ask(leaving, t, client)
	if d := m.GetOverrideMessageTimeout().AsDuration(); d != time.Minute {
		t.Errorf("the data plane extends its timeout by %v", d)
	}
	dying, die := context.WithCancel(t.Context())
	ask(dying, t, client)
	var waiting []extprocv3.ExternalProcessor_ProcessClient
	for range 20 {
		s, _ := ask(t.Context(), t, client)
		waiting = append(waiting, s)
	}
	awaitQueued(t, held, 22)
	leave()
	awaitQueued(t, held, 21)
	die()
	f.ApplyPlacement(news(t, f, []string{"loaded=nobody@" + address}))
	for _, s := range waiting {
		if got := decided(t, s); !strings.Contains(got, "destination-endpoint="+address) {
			t.Error(got)
		}
	}
	awaitQueued(t, held, 0)
	if got := held.WaitingModels(); len(got) != 0 {
		t.Errorf("wanted are %v", got)
	}
}

// A new request is served after the requests that already wait.
func TestNewRequestsWaitBehindOthers(t *testing.T) {
	f, held, _ := queueing(t, time.Minute, 100)
	ticket, err := held.Enqueue(flow.Request{Key: nobody, Placed: true, Bytes: 1}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	f.ApplyPlacement(news(t, f, []string{"loaded=nobody@" + address}))
	if err := <-ticket.Turn(); err != nil { // called, but not decided yet
		t.Fatal(err)
	}
	server, _ := newServer(t, f, func(c *stream.Config) { c.Flow = held })
	x := server.Exchange(stream.Own, "", 0)
	for _, line := range []string{"headers :method=POST :path=/v1/completions", `body {"model":"missing"}`} {
		if _, err := x.Receive(message(t, line), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if x.Waits() == "" {
		t.Error("it precedes the one whose turn it is")
	}
	ticket.Leave()
	if out := x.Resume(time.Now()); len(out) != 1 {
		t.Errorf("after that one it gets %v", out)
	}
	x.End(time.Now())
}

func TestWaitTimesOut(t *testing.T) {
	_, held, client := queueing(t, 50*time.Millisecond, 1)
	s, _ := ask(t.Context(), t, client)
	if got := decided(t, s); !strings.Contains(got, "reply: 504") {
		t.Errorf("after its time it gets %s", got)
	}
	awaitQueued(t, held, 0)
}

func TestWaitEndsWithAFailure(t *testing.T) {
	f, held, client := queueing(t, time.Minute, 1)
	s, _ := ask(t.Context(), t, client)
	_, full := ask(t.Context(), t, client)
	if got := render(t, full); !strings.Contains(got, "reply: 429") || !strings.Contains(got, "retry-after=") {
		t.Errorf("behind a waiting request the next gets %s", got)
	}
	f.ApplyPlacement(news(t, f, []string{"failed=nobody"}))
	if got := decided(t, s); !strings.Contains(got, "reply: 503") || !strings.Contains(got, "model_load_failed") {
		t.Errorf("when the model cannot be loaded it gets %s", got)
	}
	if _, m := ask(t.Context(), t, client); !strings.Contains(render(t, m), "model_load_failed") {
		t.Errorf("the next gets %v", m)
	}
	awaitQueued(t, held, 0)
}

// If a VModel moves to another model, and its old model then fails to load or is deleted, requests
// for the VModel go to the new model. Requests for the old model fail.
func TestWaitForAVModelSurvivesItsModel(t *testing.T) {
	for _, word := range []string{"failed=nobody", "unknown=nobody"} {
		f, held, _ := queueing(t, time.Minute, 10)
		var counted *metrics.Meter
		server, _ := newServer(t, f, func(c *stream.Config) { c.Flow, c.Settings.QueueTimeout, counted = held, time.Minute, c.Meter })
		client := dialServer(t, server, stream.Own)
		own, _ := ask(t.Context(), t, client)
		named, _ := askFor(t.Context(), t, client, "lost")
		awaitQueued(t, held, 2)
		f.ApplyPlacement(news(t, f, []string{"loaded=sql-v3@" + address, "moved=lost@sql-v3"}))
		awaitQueued(t, held, 2)
		f.ApplyPlacement(news(t, f, []string{word}))
		if got := decided(t, named); !strings.Contains(got, "destination-endpoint="+address) || !strings.Contains(got, "sql-v3") {
			t.Errorf("%s: the VModel's request gets %s", word, got)
		}
		if got := decided(t, own); !strings.Contains(got, "reply: ") {
			t.Errorf("%s: the model's request gets %s", word, got)
		}
		awaitQueued(t, held, 0)
		page := httptest.NewRecorder()
		counted.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		for _, want := range []string{
			`headgate_queue_time_seconds_count{outcome="failed"} 1`,
			`headgate_queue_time_seconds_count{outcome="released"} 1`,
		} {
			if !strings.Contains(page.Body.String(), want) {
				t.Errorf("%s: the metrics lack %s", word, want)
			}
		}
	}
}

// A request that waits for a Model or a VModel keeps its place and its age when objects change.
func TestEditsKeepRequestsForModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, held, client := queueing(t, time.Minute, 10)
		for i, model := range []string{"lost", "mm-1"} {
			_, _ = askFor(t.Context(), t, client, model)
			awaitQueued(t, held, int64(i+1))
		}
		before := held.WaitingModels()
		if len(before) != 2 {
			t.Fatalf("requests wait for %v", before)
		}
		time.Sleep(time.Second)
		edited := *f.View().World
		f.SetWorld(&edited)
		synctest.Wait()
		if after := held.WaitingModels(); !slices.Equal(after, before) {
			t.Errorf("after an edit requests wait for %v, before for %v", after, before)
		}
		f.ApplyPlacement(news(t, f, []string{"failed=nobody", "failed=mm-1"}))
		awaitQueued(t, held, 0)
	})
}

// A request whose VModel moves to a model without a copy waits for that model.
func TestWaitForAVModelFollowsItsTarget(t *testing.T) {
	f, held, client := queueing(t, time.Minute, 10)
	s, _ := askFor(t.Context(), t, client, "lost")
	awaitQueued(t, held, 1)
	f.ApplyPlacement(news(t, f, []string{"moved=lost@sql-v4"}))
	f.ApplyPlacement(news(t, f, []string{"failed=nobody"}))
	awaitWanted(t, held, "sql-v4", 1)
	f.ApplyPlacement(news(t, f, []string{"loaded=sql-v4@" + address}))
	if got := decided(t, s); !strings.Contains(got, "destination-endpoint="+address) || !strings.Contains(got, "sql-v4") {
		t.Errorf("it gets %s", got)
	}
	awaitQueued(t, held, 0)
}

// A request whose VModel moves is served after the requests that already wait for its new model.
func TestWaitForAVModelKeepsTheOrder(t *testing.T) {
	f, held, client := queueing(t, time.Minute, 10)
	ticket, err := held.Enqueue(flow.Request{
		Key: objects.ModelKey{Pool: nobody.Pool, ID: "sql-v4"}, Placed: true, Bytes: 1,
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s, _ := askFor(t.Context(), t, client, "lost")
	awaitQueued(t, held, 2)
	f.ApplyPlacement(news(t, f, []string{"moved=lost@sql-v4", "loaded=sql-v4@" + address}))
	if err := <-ticket.Turn(); err != nil { // called, but not decided yet
		t.Fatal(err)
	}
	f.ApplyPlacement(news(t, f, []string{"failed=nobody"}))
	awaitWanted(t, held, "sql-v4", 2)
	ticket.Leave()
	if got := decided(t, s); !strings.Contains(got, "sql-v4") {
		t.Errorf("it gets %s", got)
	}
	awaitQueued(t, held, 0)
}

// awaitWanted waits until exactly this many requests wait for a model, and none for another model.
func awaitWanted(t *testing.T, held *flow.Flow, id string, want int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.After(5 * time.Second)
	for all := held.WaitingModels(); len(all) != 1 || all[0].Key.ID != id || all[0].Requests != want; all = held.WaitingModels() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("wanted are %v", all)
		}
	}
}

// When extproc stops, waiting requests fail with an error, and are not counted as canceled.
func TestWaitEndsWithTheProcess(t *testing.T) {
	f, held, _ := queueing(t, time.Minute, 1)
	var counted *metrics.Meter
	server, _ := newServer(t, f, func(c *stream.Config) { c.Flow, c.Settings.QueueTimeout, counted = held, time.Minute, c.Meter })
	s, _ := ask(t.Context(), t, dialServer(t, server, stream.Own))
	server.Refuse()
	if got := decided(t, s); !strings.Contains(got, "reply: 503") || !strings.Contains(got, "retry-after=") {
		t.Errorf("it gets %s", got)
	}
	awaitQueued(t, held, 0)
	page := httptest.NewRecorder()
	counted.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if want := `headgate_queue_time_seconds_count{outcome="stopped"} 1`; !strings.Contains(page.Body.String(), want) {
		t.Errorf("the metrics lack %s", want)
	}
}

// If a model's objects are deleted, waiting requests get the same error as a new request.
func TestWaitEndsWithTheModel(t *testing.T) {
	f, held, client := queueing(t, time.Minute, 1)
	s, _ := ask(t.Context(), t, client)
	f.ApplyPlacement(news(t, f, []string{"unknown=nobody"}))
	if got := decided(t, s); !strings.Contains(got, "reply: 404") || !strings.Contains(got, "model_not_found") {
		t.Errorf("when the model is gone it gets %s", got)
	}
	awaitQueued(t, held, 0)
}

// A wait may last minutes, and must not keep an old view of the fleet in memory.
func TestWaitKeepsNoSnapshotAlive(t *testing.T) {
	f, held, client := queueing(t, time.Minute, 100)
	old := weak.Make(f.View().Snapshot.Pools["ns/base"].Endpoints[0])
	ctx, cancel := context.WithCancel(t.Context())
	ask(ctx, t, client)
	f.SetWorld(f.View().World) // publishes a new view
	for range 3 {
		runtime.GC()
	}
	if old.Value() != nil {
		t.Error("the snapshot is still in memory")
	}
	cancel()
	awaitQueued(t, held, 0)
}
