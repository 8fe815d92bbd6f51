package metrics_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/metrics"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/placementserver"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/version"
)

var (
	loopback = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9091}
	podIP    = &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 9091}
)

// get calls a handler as if the request had arrived at the address at of this machine.
func get(t *testing.T, h http.Handler, at net.Addr, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = "localhost:9091"
	h.ServeHTTP(w, r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, at)))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(body)
}

func expect(t *testing.T, page string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("the page lacks %s", line)
		}
	}
}

var sql = decide.Key{Pool: objects.Name{Namespace: "ns", Name: "pool"}, ID: "sql"}

// deciding returns a placement server, a placer with one model, for which three requests are
// queued, and a function that returns no conditions.
func deciding(t *testing.T, m *metrics.Meter) (*placementserver.Server, *place.Placer, func() []admin.Condition) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	file, err := store.Open(filepath.Join(t.TempDir(), "x.db"), log)
	if err != nil {
		t.Fatal(err)
	}
	board := placementserver.New(log)
	placer, err := place.New(place.Config{Memory: file, Log: log, Publisher: board, Meter: m})
	if err != nil {
		t.Fatal(err)
	}
	board.SetPlacer(placer)
	ctx, stop := context.WithCancel(t.Context())
	running, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- placer.Run(ctx, func() { close(running) }) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = file.Close()
	})
	<-running
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}}
	p.Spec.Selector.MatchLabels = map[string]string{"app": "llama"}
	p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
	model := v1alpha1.Model{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sql"}}
	model.Spec.PoolRef.Name = "pool"
	model.Spec.Source = "s3://secret-bucket/sql"
	placer.SetWorld(objects.Build(objects.Set{Pools: []pool.InferencePool{p}, Models: []*v1alpha1.Model{&model}}))
	placer.Wanted("extproc", sql, decide.Want{Requests: 3, Since: time.Now()})
	return board, placer, func() []admin.Condition { return nil }
}

func TestMetricsOfControl(t *testing.T) {
	m := metrics.New()
	m.LoadCalled(3*time.Second, 2*time.Second)
	m.LoadEnded(4*time.Second, false)
	m.LoadEnded(time.Second, true)
	m.UnloadEnded(time.Second, false)
	m.Evicted()
	m.Decided(decide.Load, decide.ForRequests)
	m.Decided(decide.Load, decide.ForRequests)
	m.Decided(decide.Predict, decide.ForRecord)
	m.Decided(decide.Unload, 0)
	m.CannotLoad(decide.NoRoom)
	m.Refused(2)
	m.Readable(true)
	h := m.Handler(nil)
	_, page := get(t, h, podIP, "/metrics")
	expect(t, page,
		`headgate_place_load_queue_seconds_sum 1`,
		`headgate_place_stalled_seconds_sum 2`,
		`headgate_place_load_seconds_sum{result="done"} 4`,
		`headgate_place_load_seconds_sum{result="failed"} 1`,
		`headgate_place_unload_seconds_count{result="done"} 1`,
		`headgate_place_evictions_total 1`,
		`headgate_place_decisions_total{decision="load",for="requests"} 2`,
		`headgate_place_decisions_total{decision="predict",for="record"} 1`,
		`headgate_place_decisions_total{decision="unload",for=""} 1`,
		`headgate_place_rejections_total{reason="no_room"} 1`,
		`headgate_objects_rejected_files 2`,
		`headgate_objects_connected 1`,
		`headgate_leader 0`,
		`headgate_build_info{goversion="`+version.Read().Go+`",program="control",version="`+version.Read().Program+`"} 1`,
	)
	for _, name := range []string{
		"headgate_copies", "headgate_models", "headgate_place_queued_requests",
		"headgate_place_warm_window_seconds", "headgate_extprocs",
	} {
		if strings.Contains(page, name) {
			t.Errorf("a control that does not lead has the metric %s", name)
		}
	}
	m.Follow(deciding(t, m))
	m.Leads(true)
	_, page = get(t, h, podIP, "/metrics")
	expect(t, page,
		`headgate_leader 1`, `headgate_extprocs 0`, `headgate_place_queued_requests 3`,
		`headgate_models{which="all"} 1`, `headgate_models{which="requested"} 1`, `headgate_copies{state="loaded"} 0`,
	)
	if !strings.Contains(page, `headgate_place_warm_window_seconds{pool="ns/pool"} `) {
		t.Error("the warm window of the pool is missing")
	}
	m.Follow(nil, nil, nil)
	if _, page = get(t, h, podIP, "/metrics"); strings.Contains(page, "headgate_models") {
		t.Error("a control whose term has ended has metrics of models")
	}
}

func TestReadyWithObjects(t *testing.T) {
	loaded := make(chan struct{})
	h := metrics.New().Handler(loaded)
	if code, _ := get(t, h, podIP, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("without objects /readyz is %d", code)
	}
	close(loaded)
	for _, path := range []string{"/readyz", "/healthz"} {
		if code, _ := get(t, h, podIP, path); code != http.StatusOK {
			t.Errorf("with objects %s is %d", path, code)
		}
	}
}

// The sources of models are served to this machine only, whatever the metrics address is.
func TestModelsAreServedOnLoopbackOnly(t *testing.T) {
	m := metrics.New()
	h := m.Handler(nil)
	if code, said := get(t, h, loopback, "/models"); code != http.StatusServiceUnavailable ||
		said != "another control leads: ask that one\n" {
		t.Errorf("a control that does not lead answers %d %s", code, said)
	}
	m.Follow(deciding(t, m))
	for _, at := range []net.Addr{loopback, &net.TCPAddr{IP: net.IPv6loopback, Port: 9091}, &net.UnixAddr{Name: "x", Net: "unix"}} {
		for path, want := range map[string]string{
			"/conditions": "null", "/models": "s3://secret-bucket/sql", "/models?id=sql": "s3://secret-bucket/sql", "/models?id=none": "[]",
		} {
			if code, said := get(t, h, at, path); code != http.StatusOK || !strings.Contains(said, want) {
				t.Errorf("at %v %s is %d: %s", at, path, code, said)
			}
		}
	}
	const refusal = "control serves /models only on loopback, because it lists models and their endpoints: " +
		"run `kubectl port-forward POD 9091` and ask http://localhost:9091/models\n"
	for _, at := range []net.Addr{podIP, &net.TCPAddr{IP: net.ParseIP("fd00::7"), Port: 9091}} {
		for _, path := range []string{"/models", "/models?id=sql"} {
			if code, said := get(t, h, at, path); code != http.StatusForbidden || said != refusal {
				t.Errorf("at %v %s is %d: %s", at, path, code, said)
			}
		}
	}
	if code, said := get(t, h, nil, "/models"); code != http.StatusForbidden || strings.Contains(said, "secret") {
		t.Errorf("with an unknown client address /models is %d: %s", code, said)
	}
}

// The leader serves its placement only on loopback. Other controls answer with the name of the
// leader, if known.
func TestPlacementIsServedOnLoopbackOnly(t *testing.T) {
	m := metrics.New()
	h := m.Handler(nil)
	for _, c := range []struct{ leader, want string }{
		{"", "another control leads: ask that one\n"},
		{"control-1", "the leader is in the pod control-1: ask that one\n"},
		{"", "another control leads: ask that one\n"},
	} {
		m.Leader(c.leader)
		if code, said := get(t, h, loopback, "/placement"); code != http.StatusServiceUnavailable || said != c.want {
			t.Errorf("a control that does not lead answers %d %s", code, said)
		}
	}
	m.Follow(deciding(t, m))
	_, page := get(t, h, podIP, "/metrics")
	expect(t, page, `headgate_place_rejections_total{reason="no_endpoint"} 1`)
	code, said := get(t, h, loopback, "/placement")
	var v decide.View
	if err := json.Unmarshal([]byte(said), &v); err != nil || code != http.StatusOK || len(v.Models) != 1 || v.Models[0].Queued != 3 ||
		strings.Contains(said, "secret") {
		t.Errorf("%v: /placement is %d: %s", err, code, said)
	}
	const refusal = "control serves /placement only on loopback, because it lists models and their endpoints: " +
		"run `kubectl port-forward POD 9091` and ask http://localhost:9091/placement\n"
	if code, said := get(t, h, podIP, "/placement"); code != http.StatusForbidden || said != refusal {
		t.Errorf("at %v /placement is %d: %s", podIP, code, said)
	}
}
