package endpointstate_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

var thePool = objects.Name{Namespace: "ns", Name: "pool"}

func copyOf(id, endpoint string) endpointstate.CopyKey {
	return endpointstate.CopyKey{ModelKey: objects.ModelKey{Pool: thePool, ID: id}, Endpoint: endpoint}
}

// governing returns these endpoints in the form in which an update names those that control
// manages.
func governing(endpoints ...string) map[string]bool {
	all := make(map[string]bool)
	for _, e := range endpoints {
		all[e] = true
	}
	return all
}

// podsOf returns thePool with one ready pod for each IP address; a pod's name is the prefix and the
// address.
func podsOf(prefix string, ips ...string) objects.Set {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: thePool.Namespace, Name: thePool.Name}}
	p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
	s := objects.Set{Pools: []pool.InferencePool{p}}
	for _, ip := range ips {
		s.Pods = append(s.Pods, objects.Pod{Name: objects.Name{Namespace: "ns", Name: prefix + ip}, IP: netip.MustParseAddr(ip), Ready: true})
	}
	return s
}

// rig is a State with a clock that the test sets.
type rig struct {
	*endpointstate.State
	now time.Time
}

// newRig returns a rig with the endpoints a and b of thePool, neither of which was scraped.
func newRig(c endpointstate.Config) *rig {
	s := &rig{endpointstate.New(c), start}
	s.SetWorld(world(thePool.Name))
	return s
}

// started returns a rig with two scraped endpoints. Each has a base model with two names, and two
// adapters.
func started() *rig {
	s := newRig(endpointstate.Config{})
	for _, address := range []string{a, b} {
		s.list(address, engine.Models{Base: []string{"llama", "alias"}, Adapters: []string{"sql", "chat"}})
		s.see(address, engine.Load{})
	}
	return s
}

func (s *rig) advance(d time.Duration) { s.now = s.now.Add(d) }

// scrape starts a scrape.
func (s *rig) scrape(address string) endpointstate.Scrape { return s.Scrape(address, s.now) }

// see makes a scrape that starts and succeeds now.
func (s *rig) see(address string, load engine.Load) { s.ScrapeSucceeded(s.scrape(address), load) }

// list reads the model list of an endpoint now.
func (s *rig) list(address string, m engine.Models) { s.ModelsListed(s.scrape(address), m) }

// place applies an update of control now.
func (s *rig) place(n endpointstate.PlacementUpdate) { s.ApplyPlacement(n, s.now) }

// report applies control's report about the copy of one model at a.
func (s *rig) report(id string, state endpointstate.CopyState) {
	s.place(endpointstate.PlacementUpdate{Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf(id, a): state}})
}

func (s *rig) view() *endpointstate.View { return view(s.State, s.now) }

// pool returns thePool in a new view.
func (s *rig) pool() *pick.Pool { return s.view().Snapshot.Pools[thePool.String()] }

// states returns the states of a and b in a new view.
func (s *rig) states() [2]pick.State {
	p := s.pool()
	return [2]pick.State{p.Endpoints[0].State, p.Endpoints[1].State}
}

// expect checks the state of a, and checks that b is healthy.
func (s *rig) expect(t *testing.T, when string, want pick.State) {
	t.Helper()
	if got := s.states(); got != [2]pick.State{want, pick.Healthy} {
		t.Errorf("%s: the states are %v, want %v and healthy", when, got, want)
	}
}

// expectWhere checks which endpoints serve a model.
func (s *rig) expectWhere(t *testing.T, when, id string, want ...string) {
	t.Helper()
	p := s.pool()
	var got []string
	for _, c := range p.Copies[id] {
		got = append(got, p.Endpoints[c.Endpoint].Address)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %s is at %v, want %v", when, id, got, want)
	}
}
