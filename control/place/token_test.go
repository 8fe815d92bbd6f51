package place_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	inference "github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
)

// guarded is a simulated vLLM that requires a token and records the tokens that it receives.
type guarded struct {
	vllm
	address string

	mu    sync.Mutex // guards the fields below
	token string
	shown map[string]bool
}

func serveGuarded(t *testing.T, token string) *guarded {
	t.Helper()
	g := &guarded{vllm: serveVLLM(t), token: token, shown: make(map[string]bool)}
	engine := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: g.vllm.address})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := r.Header.Get("Authorization")
		g.mu.Lock()
		g.shown[shown] = true
		good := shown == "Bearer "+g.token
		g.mu.Unlock()
		if !good {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		engine.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	g.address = server.Listener.Addr().String()
	return g
}

// all returns the recorded tokens, and removes them from the record.
func (g *guarded) all() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := strings.Join(slices.Sorted(maps.Keys(g.shown)), ", ")
	clear(g.shown)
	return all
}

func (g *guarded) wants(token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.token = token
}

// tenant returns the objects of one namespace: a pool p of engines, their token, and one model.
func tenant(namespace, model string, created time.Time, addresses ...string) objects.Set {
	labels := map[string]string{"app": "p"}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "p", Labels: labels, CreationTimestamp: metav1.NewTime(created)}
	p := inference.InferencePool{ObjectMeta: meta}
	p.Spec.Selector.MatchLabels = labels
	s := v1alpha1.PoolSettings{ObjectMeta: meta}
	s.Spec.PoolRef.Name = "p"
	s.Spec.Placement = &v1alpha1.Placement{Source: "sim:"}
	s.Spec.EngineToken = &v1alpha1.EngineToken{SecretRef: v1alpha1.SecretKeyReference{Name: "s"}}
	m := v1alpha1.Model{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: model}}
	m.Spec.PoolRef.Name = "p"
	list := v1alpha1.EndpointList{ObjectMeta: meta, Spec: v1alpha1.EndpointListSpec{Addresses: addresses}}
	return objects.Set{
		Pools: []inference.InferencePool{p}, Settings: []v1alpha1.PoolSettings{s}, Models: []*v1alpha1.Model{&m},
		Lists: []objects.List{{EndpointList: list, Loopback: true}},
	}
}

// Each engine is called only with the token of its owner. An owner in another namespace who lists
// the engine's address cannot load anything there. A changed token is used at once, and so is a
// token from another Secret.
func TestEngineIsManagedWithItsOwnersToken(t *testing.T) {
	tokens := engineclient.NewTokens(func() string { return "of-the-flag" })
	set := func(ref, token string) {
		t.Helper()
		if _, err := tokens.Set(ref, []byte(token)); err != nil {
			t.Fatal(err)
		}
	}
	set("victim/s/token", "of-the-victim")
	set("attacker/s/token", "of-the-attacker")
	w := &world{T: t, file: t.TempDir() + "/control.db", tokens: tokens}
	w.start()
	t.Cleanup(func() { w.stop() })
	victims, attackers := serveGuarded(t, "of-the-victim"), serveGuarded(t, "of-the-attacker")
	begun := time.Unix(1e9, 0)
	both := tenant("victim", "good", begun, victims.address).Join(tenant("attacker", "evil", begun.Add(time.Second), victims.address,
		attackers.address))
	w.world = objects.Build(both)
	w.SetWorld(w.world)
	want := func(namespace, id string) {
		key := decide.Key{Pool: objects.Name{Namespace: namespace, Name: "p"}, ID: id}
		w.Wanted("x", key, decide.Want{Requests: 1, Since: time.Now()})
	}
	want("attacker", "evil")
	w.awaitCopies("evil", attackers.address+" loaded")
	want("victim", "good")
	w.awaitCopies("good", victims.address+" loaded")
	if events := victims.events(); !slices.Equal(events, []string{"load good", "loaded good"}) {
		t.Errorf("the victim's engine was told %v", events)
	}
	if events := attackers.events(); !slices.Equal(events, []string{"load evil", "loaded evil"}) {
		t.Errorf("the attacker's engine was told %v", events)
	}

	// The attacker now lists only the victim's engine, so the attacker's models have no engine.
	w.world = objects.Build(tenant("victim", "good", begun,
		victims.address).Join(tenant("attacker", "evil", begun.Add(time.Second), victims.address)))
	w.SetWorld(w.world)
	if st, _ := w.Status(decide.Key{Pool: objects.Name{Namespace: "attacker", Name: "p"}, ID: "evil"}); st.Failed != decide.NoEndpoint {
		t.Errorf("the attacker's model can be loaded: %+v", st)
	}
	if got := victims.all(); got != "Bearer of-the-victim" {
		t.Errorf("the victim's engine was shown %q", got)
	}
	if got := attackers.all(); got != "Bearer of-the-attacker" {
		t.Errorf("the attacker's engine was shown %q", got)
	}

	// First the token changes, then the owner names another Secret.
	victims.wants("anew")
	set("victim/s/token", "anew")
	victims.all()
	w.await("the new token is shown", func() bool { return victims.all() == "Bearer anew" })
	set("victim/other/token", "other")
	victims.wants("other")
	named := tenant("victim", "good", begun, victims.address)
	named.Settings[0].Spec.EngineToken.SecretRef.Name = "other"
	w.world = objects.Build(named)
	w.SetWorld(w.world)
	victims.all()
	w.await("the other token is shown", func() bool { return victims.all() == "Bearer other" })
	w.awaitCopies("good", victims.address+" loaded")
}
