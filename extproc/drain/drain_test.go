package drain_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/extproc/drain"
)

// Drain makes Envoy close its client connections, and returns after nothing has been in flight for
// a while, even if some calls to Envoy fail. It returns an error if Envoy is gone.
func TestDrainEndsWhenNothingIsInFlight(t *testing.T) {
	var asked, told atomic.Int64
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		switch {
		case n%3 != 0:
			http.Error(w, "busy", http.StatusServiceUnavailable)
		case r.Method == http.MethodPost && r.URL.RequestURI() == "/drain_listeners?graceful&skip_exit":
			told.Add(1)
		default:
			fmt.Fprintf(w, "http.ingress.downstream_rq_active: %d\n", max(0, 5-n/3))
		}
	}))
	address := strings.TrimPrefix(admin.URL, "http://")
	if err := drain.Run(t.Context(), []string{"--admin", address, "--delay", "0s", "--limit", "1m"}, io.Discard); err != nil {
		t.Error(err)
	}
	if told.Load() != 1 || asked.Load() < 3*(4+10) {
		t.Errorf("Envoy was told to drain %d times, and asked %d times", told.Load(), asked.Load())
	}
	admin.Close()
	if err := drain.Run(t.Context(), []string{"--admin", address, "--delay", "0s", "--limit", "1m"}, io.Discard); err == nil {
		t.Error("without an Envoy drain returns no error")
	}
}

// If the time limit ends during a call to Envoy, the error reports the last known number of
// requests.
func TestDrainReportsRequestsInFlight(t *testing.T) {
	var asked atomic.Int64
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > 2 {
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, "http.ingress.downstream_rq_active: 3\n")
	}))
	defer admin.Close()
	err := drain.Run(t.Context(), []string{"--admin", strings.TrimPrefix(admin.URL, "http://"), "--delay", "0s", "--limit", "1s"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "requests still in flight after 1s: 3") {
		t.Error(err)
	}
}
