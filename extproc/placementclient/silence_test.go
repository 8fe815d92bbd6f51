package placementclient_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/flow"
)

// connected returns the value of the metric headgate_control_connected.
func (r *rig) connected() string {
	w := httptest.NewRecorder()
	r.meter.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	_, value, _ := strings.Cut(w.Body.String(), "\nheadgate_control_connected ")
	value, _, _ = strings.Cut(value, "\n")
	return value
}

// While control is silent, whether it hangs or is gone, requests that need a load fail, including
// those that wait already. Requests whose model has a copy go on.
func TestSilenceOfControlEndsWaits(t *testing.T) {
	t.Parallel()
	r := (&rig{T: t, lost: 1500 * time.Millisecond}).start()
	s := r.next()
	s.say(complete(is("loaded", a, placement.Copy_LOADED)))
	s.inForce()
	fails := func(ticket *flow.Ticket) {
		t.Helper()
		select {
		case err := <-ticket.Turn():
			if !errors.Is(err, flow.ErrControlLost) {
				t.Errorf("the waiting request gets %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the request still waits")
		}
		ticket.Leave()
		if _, err := r.flow.Enqueue(flow.Request{Key: key("m"), Placed: true, Bytes: 1}, time.Now()); !errors.Is(err, flow.ErrControlLost) {
			t.Errorf("the next request gets %v", err)
		}
		if err := r.flow.Failure(key("m")); !errors.Is(err, flow.ErrControlLost) {
			t.Errorf("a model that is not loaded: %v", err)
		}
		if got := r.connected(); got != "0" {
			t.Errorf("headgate_control_connected is %q", got)
		}
		if !r.has("loaded") {
			t.Error("the loaded copy is lost, too")
		}
	}
	waits := func() *flow.Ticket {
		t.Helper()
		var ticket *flow.Ticket
		r.await("a request waits again", func() (ok bool) {
			var err error
			ticket, err = r.flow.Enqueue(flow.Request{Key: key("m"), Placed: true, Bytes: 1}, time.Now())
			return err == nil
		})
		return ticket
	}

	s.until("there is a question", func() bool { return s.question == 1 })
	s.say(&placement.Update{Answer: 1})
	ticket := waits()
	s.until("a silent control is asked for a sign of life", func() bool { return s.question == 2 })
	fails(ticket) // it hangs

	s.say(&placement.Update{Answer: 2})
	ticket = waits()
	if got := r.connected(); got != "1" {
		t.Errorf("after a sign of life headgate_control_connected is %q", got)
	}
	r.control.stop()
	fails(ticket) // it is gone

	r.control = r.serve()
	s = r.next()
	s.say(&placement.Update{Answer: 2})
	waits().Leave()
	if got := r.connected(); got != "0" {
		t.Errorf("before the new stream has the whole state headgate_control_connected is %q", got)
	}
	s.say(complete())
	r.await("control is connected", func() bool { return r.connected() == "1" })
}

// An old control answers no questions. It is not lost while its stream lasts.
func TestControlWithoutAnswersIsNotLost(t *testing.T) {
	t.Parallel()
	r := (&rig{T: t, lost: 1500 * time.Millisecond}).start()
	s := r.next()
	s.say(complete())
	s.inForce()
	ticket := r.wait("m")
	defer ticket.Leave()
	select {
	case err := <-ticket.Turn():
		t.Errorf("the waiting request gets %v", err)
	case <-time.After(3 * time.Second):
	}
}
