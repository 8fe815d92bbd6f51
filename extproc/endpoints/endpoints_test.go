package endpoints_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/endpoints"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

var update = flag.Bool("update", false, "write the answer into testdata")

var thePool = objects.Name{Namespace: "ns", Name: "pool"}

// world returns the pool with n pods, 10.0.0.1:8000 and those after it.
func world(n int) *objects.World {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: thePool.Namespace, Name: thePool.Name}}
	p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
	own := v1alpha1.PoolSettings{ObjectMeta: p.ObjectMeta}
	own.Spec.PoolRef.Name = p.Name
	own.Spec.Timeouts = &v1alpha1.PoolTimeouts{Empty: &metav1.Duration{Duration: time.Minute}}
	s := objects.Set{Pools: []pool.InferencePool{p}, Settings: []v1alpha1.PoolSettings{own}}
	at := netip.MustParseAddr("10.0.0.0")
	for i := range n {
		at = at.Next()
		s.Pods = append(s.Pods, objects.Pod{Name: objects.Name{Namespace: "ns", Name: fmt.Sprint("llm-", i)}, IP: at, Ready: true})
	}
	return objects.Build(s)
}

// of returns the endpoints of a fleet.
func of(f *fleet.Fleet) admin.EndpointsResult {
	in := fleet.Read(f, func(s *endpointstate.State) endpoints.Fleet {
		return endpoints.Fleet{
			Endpoints: s.Endpoints(f.Now()), Known: s.Times.Known(), FailOpen: s.FailOpen(), Settings: settings.Default(),
			Held: map[objects.Name][]admin.Held{thePool: {{Band: 7, Reason: "room", Requests: 3, OldestSeconds: 1.5}}},
		}
	})
	in.View = f.View()
	return endpoints.Of(in, f.Now())
}

func TestEndpointsAreReportedAsThePickerSeesThem(t *testing.T) {
	now := time.Unix(1e9, 0).UTC()
	f := fleet.New(fleet.Config{Now: func() time.Time { return now }})
	f.SetWorld(world(3))
	load := engine.Load{
		Kind: engine.VLLM, Running: engine.Known(3), Waiting: engine.Known(1), KVUsage: engine.Known(0.25), MaxAdapters: engine.Known(4),
		Active: []string{"chat"},
	}
	for _, address := range []string{"10.0.0.1:8000", "10.0.0.2:8000"} {
		f.SetModels(address, engine.Models{Base: []string{"llama"}, Adapters: []string{"chat", "sql"}})
		f.Scrape(address).Succeeded(load)
	}
	f.Update(fleet.Now, func(s *endpointstate.State, now time.Time) {
		s.Refused("10.0.0.3:8000", now)
		endpointstate.Faulted(s, "10.0.0.3:8000", endpointstate.Fault{At: now, Kind: "scrape_refused"})
	})
	picks, err := pick.Pick(pick.Policy{Threshold: 4}, f.View().Snapshot,
		pick.Request{Pool: thePool.String(), Model: "sql", Only: pick.ParseSubset([]string{"10.0.0.1"})}, make([]pick.Decision, 1))
	if err != nil {
		t.Fatal(err)
	}
	request := f.Begin(picks[0])
	now = now.Add(time.Second / 2)
	f.Observe(outcome.Outcome{
		Pool: thePool.String(), Endpoint: "10.0.0.2:8000", Status: 500, ErrorType: "server_error", ErrorCode: "500", Began: now,
	})
	got, err := json.MarshalIndent(of(f), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/endpoints.json"
	if *update {
		if err := os.WriteFile(file, append(got, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != string(got)+"\n" {
		t.Errorf("%v; got\n%s\nwant\n%s", err, got, want)
	}
	request.End()
	if again := of(f); again.Endpoints[0].InFlight != 0 || again.Endpoints[0].Adapters[1].InFlight != 0 {
		t.Errorf("after the request has ended: %+v", again.Endpoints[0])
	}
}

// The answer about a large fleet is not larger than the protocol allows, and takes little time.
func TestLargeFleet(t *testing.T) {
	f := fleet.New(fleet.Config{})
	w := world(1000)
	f.SetWorld(w)
	var adapters []string
	for i := range 100 {
		adapters = append(adapters, fmt.Sprintf("team-%d/adapter-%03d", i%7, i))
	}
	for _, e := range w.Engines {
		f.SetModels(e.Address, engine.Models{Base: []string{"meta-llama/Llama-3.1-8B-Instruct"}, Adapters: adapters})
		f.Scrape(e.Address).Succeeded(engine.Load{Running: engine.Known(1)})
	}
	f.SetWorld(w)
	began := time.Now()
	r := of(f)
	took := time.Since(began)
	text, err := json.Marshal(r)
	t.Logf("%v, %d bytes", took, len(text))
	if err != nil || len(text) > admin.MaxResult || len(r.Endpoints) != 1000 || r.Endpoints[0].AdapterCount != 100 {
		t.Errorf("%v: %d endpoints, %d bytes", err, len(r.Endpoints), len(text))
	}
}
