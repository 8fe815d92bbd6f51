package metrics_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/control/metrics"
	"github.com/headgate/headgate/internal/objects"
)

// Only JSON from loopback drains an endpoint, and an unknown endpoint is an error that names the
// known ones.
func TestDrainOverHTTP(t *testing.T) {
	m := metrics.New()
	h := m.Handler(nil)
	ask := func(from net.Addr, media, body string) (int, string) {
		t.Helper()
		ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, from)
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/drain", strings.NewReader(body))
		r.Host = "localhost:9091"
		r.Header.Set("Content-Type", media)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	const form, plain, query = "application/x-www-form-urlencoded", "application/json", `{"endpoint":"10.9.9.9:8000"}`
	if code, said := ask(loopback, plain, query); code != http.StatusServiceUnavailable {
		t.Errorf("without a term it is %d %s", code, said)
	}
	board, placer, none := deciding(t, m)
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}}
	p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
	placer.SetWorld(objects.Build(objects.Set{
		Pools: []pool.InferencePool{p},
		Pods:  []objects.Pod{{Name: objects.Name{Namespace: "ns", Name: "e"}, IP: netip.MustParseAddr("127.9.9.9"), Ready: true}},
	}))
	m.Follow(board, placer, none)
	for _, c := range []struct {
		from        net.Addr
		media, body string
		code        int
		want        string
	}{
		{podIP, plain, query, http.StatusForbidden, "only on loopback"},
		{loopback, form, query, http.StatusBadRequest, "send JSON with Content-Type: application/json"},
		{loopback, plain, "{", http.StatusBadRequest, "send JSON"},
		{loopback, plain, "{}", http.StatusBadRequest, "send JSON"},
		{loopback, plain, query, http.StatusNotFound, "there is no endpoint 10.9.9.9:8000; there is 127.9.9.9:8000"},
		{loopback, plain, `{"endpoint":"127.9.9.9:8000","progress":true}`, http.StatusOK, `"drained":false`},
		{loopback, plain, `{"endpoint":"127.9.9.9:8000","seconds":60}`, http.StatusOK, `"drained":true`},
		{loopback, plain, `{"endpoint":"127.9.9.9:8000","progress":true}`, http.StatusOK, `"drained":true`},
		{loopback, plain, `{"endpoint":"127.9.9.9:8000","undo":true}`, http.StatusOK, `"drained":false`},
	} {
		if code, said := ask(c.from, c.media, c.body); code != c.code || !strings.Contains(said, c.want) {
			t.Errorf("%s: %d %s", c.body, code, said)
		}
	}
	name := func() string {
		var r admin.DrainResult
		_, said := ask(loopback, plain, `{"endpoint":"127.9.9.9:8000","progress":true}`)
		if err := json.Unmarshal([]byte(said), &r); err != nil || r.Control == "" {
			t.Errorf("%v: %s", err, said)
		}
		return r.Control
	}
	before := name()
	if name() != before {
		t.Error("the name of the term changes")
	}
	m.Follow(board, placer, none)
	if name() == before {
		t.Error("another term has the same name")
	}
}
