package stream_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/internal/objects"
)

// limited adds a copy of the adapter that has a concurrency limit.
func limited(t *testing.T, f *fleet.Fleet, limit int) {
	t.Helper()
	n := news(t, f, []string{"loaded=nobody@" + address})
	n.Limits = map[endpointstate.CopyKey]int{{ModelKey: nobody, Endpoint: address}: limit}
	f.ApplyPlacement(n)
}

// goes reports whether a message sends the request to an endpoint.
func goes(t *testing.T, m *extprocv3.ProcessingResponse) bool {
	t.Helper()
	return m.GetOverrideMessageTimeout() == nil && strings.Contains(render(t, m), "destination-endpoint="+address)
}

// next receives the next message, which must send the waiting request to its endpoint.
func next(t *testing.T, what string, s extprocv3.ExternalProcessor_ProcessClient) {
	t.Helper()
	if got := decided(t, s); !strings.Contains(got, "destination-endpoint="+address) {
		t.Errorf("%s: %s", what, got)
	}
}

// A copy gets as many requests as its limit allows. Further requests are sent in order of arrival,
// each when an earlier request ends. Clients that disconnect do not delay other requests.
func TestRequestsWaitForAFullCopy(t *testing.T) {
	f, held, client := queueing(t, time.Minute, 100)
	limited(t, f, 2)
	type asked struct {
		stream extprocv3.ExternalProcessor_ProcessClient
		end    context.CancelFunc
	}
	var all []asked
	for n := range 6 {
		ctx, end := context.WithCancel(t.Context())
		s, m := ask(ctx, t, client)
		all = append(all, asked{s, end})
		if first := n < 2; goes(t, m) != first {
			t.Fatalf("the request %d: %v", n, m)
		}
		if n >= 2 {
			awaitQueued(t, held, int64(n-1))
		}
	}
	if full := held.QueuedAtLimit(); full[nobody] != 4 {
		t.Errorf("%v wait for a full copy", full)
	}
	all[3].end() // its client disconnects during the wait
	awaitQueued(t, held, 3)
	all[0].end()
	next(t, "the first that waits", all[2].stream)
	awaitQueued(t, held, 2)
	all[2].end()
	next(t, "the next", all[4].stream)
	limited(t, f, 3)
	next(t, "where one more may", all[5].stream)
	awaitQueued(t, held, 0)
	for _, a := range all {
		a.end()
	}
	if full := held.QueuedAtLimit(); len(full) > 0 {
		t.Errorf("%v wait", full)
	}
	awaitIdle(t, f) // the server learns later that a client has left
	s, m := ask(t.Context(), t, client)
	if !goes(t, m) {
		t.Errorf("when all have ended: %v", m)
	}
	_ = s.CloseSend()
}

// Requests that wait for a copy at its limit continue when another copy is loaded or the limit is
// removed. If the copy is removed, they wait until the model is loaded.
func TestWaitingRequestsFollowChangedCopies(t *testing.T) {
	f, held, client := queueing(t, time.Minute, 100)
	limited(t, f, 1)
	if _, m := ask(t.Context(), t, client); !goes(t, m) {
		t.Fatal(m)
	}
	var waiting []extprocv3.ExternalProcessor_ProcessClient
	for range 4 {
		s, _ := ask(t.Context(), t, client)
		waiting = append(waiting, s)
	}
	awaitQueued(t, held, 4)
	f.ApplyPlacement(news(t, f, []string{"unloading=nobody@" + address, "failed=other"}))
	if full := held.QueuedAtLimit(); len(full) > 0 {
		t.Errorf("without a copy %v wait for a full one", full)
	}
	f.ApplyPlacement(news(t, f, []string{"loaded=nobody@" + address}))
	for _, s := range waiting {
		next(t, "a copy without a limit", s)
	}
	awaitQueued(t, held, 0)
}

// Requests that wait for a copy at its limit keep waiting if the model cannot be loaded elsewhere.
// When they time out, they fail with model_busy.
func TestWaitForAFullCopyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, held, client := queueing(t, time.Minute, 2)
		limited(t, f, 1)
		if _, m := ask(t.Context(), t, client); !goes(t, m) {
			t.Fatal(m)
		}
		first, _ := ask(t.Context(), t, client)
		call, err := client.Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := call.Send(message(t, aCall+"mm-model-id=missing")); err != nil {
			t.Fatal(err)
		}
		if _, err := call.Recv(); err != nil { // the data plane's timeout is extended
			t.Fatal(err)
		}
		awaitQueued(t, held, 2)
		n := news(t, f, []string{"failed=nobody"})
		f.ApplyPlacement(n)
		if _, m := ask(t.Context(), t, client); !strings.Contains(render(t, m), "too_many_waiting") {
			t.Errorf("a request beyond the limit: %v", m)
		}
		if got := decided(t, first); !strings.Contains(got, "504") || !strings.Contains(got, "model_busy") {
			t.Errorf("after its time: %s", got)
		}
		if got := decided(t, call); !strings.Contains(got, "DeadlineExceeded") || !strings.Contains(got, "model_busy") {
			t.Errorf("after the time of a call: %s", got)
		}
		awaitQueued(t, held, 0)
	})
}

// Pools that share an endpoint share its copies: when a request of one pool ends, a request of the
// other pool is woken.
func TestEndedRequestWakesEveryPool(t *testing.T) {
	f, held, _ := queueing(t, time.Minute, 100)
	limited(t, f, 1)
	other := objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "other"}, ID: nobody.ID}
	full := f.View().Snapshot.Pools[nobody.Pool.String()].Copies[nobody.ID][0].InFlight
	full.Add(1)
	ticket, err := held.Enqueue(flow.Request{Key: nobody, Placed: true, Bytes: 1}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer ticket.Leave()
	if len(ticket.Turn()) > 0 {
		t.Fatal("it gets its turn while the copy is full")
	}
	held.Freed(address, "another")
	if len(ticket.Turn()) > 0 {
		t.Fatal("it gets its turn because of another model")
	}
	full.Add(-1)
	held.Freed(address, other.ID)
	if err := <-ticket.Turn(); err != nil {
		t.Error(err)
	}
	held.Freed(address, nobody.ID)
	ticket.Back(flow.Copy, time.Time{}, nil) // as if another request got the place; one has ended since, so this request is called again
	if err := <-ticket.Turn(); err != nil {
		t.Error(err)
	}
	full.Add(1)
	ticket.Back(flow.Copy, time.Time{}, nil)
	if len(ticket.Turn()) > 0 {
		t.Error("it gets no second turn after another was faster")
	}
	full.Add(-1)
	held.Freed(address, nobody.ID)
	if err := <-ticket.Turn(); err != nil {
		t.Error(err)
	}
}
