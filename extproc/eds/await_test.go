package eds_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/headgate/headgate/extproc/eds"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// await calls Await and returns how long the call took.
func (w *world) await(needed map[string][]string) time.Duration {
	began := time.Now()
	w.Await(w.t.Context(), needed)
	return time.Since(began)
}

// Await delays the use of a new pool until the Gateway's Envoys have the pool.
func TestRequestsWaitForNewPools(t *testing.T) {
	inMemory(t, func(w *world) {
		ours, other := &corev3.Node{Cluster: "ns/g", Id: "1"}, &corev3.Node{Cluster: "ns/other", Id: "1"}
		w.set(map[string][]string{"pool/ns/a": {"10.0.0.1:80"}, "pool/ns/b": {"10.0.0.2:80"}, "pool/ns/c": {}})
		expect := func(what string, want time.Duration, names ...string) {
			t.Helper()
			if took := w.await(map[string][]string{"ns/g": names}); took != want {
				t.Errorf("%s: it took %v, want %v", what, took, want)
			}
		}
		expect("nobody is connected", 0, "pool/ns/a")
		w.followAs(other, 0, nil, "pool/ns/a")
		expect("only Envoys of another Gateway are connected", 0, "pool/ns/a")
		first := w.followAs(ours, 0, nil, "pool/ns/a")
		expect("the Envoy has the pool", 0, "pool/ns/a")
		// The Envoy subscribes to the pool after some time, and needs 50 ms more to acknowledge it.
		go func() {
			time.Sleep(100 * time.Millisecond) // on synctest's fake clock
			w.followAs(ours, 50*time.Millisecond, nil, "pool/ns/b")
		}()
		expect("the Envoy gets the pool", 150*time.Millisecond, "pool/ns/a", "pool/ns/b")
		expect("the Envoy has both pools", 0, "pool/ns/b", "pool/ns/a")
		// A pool that the Envoy never subscribes to delays Await only once.
		expect("the Envoy never subscribes to the pool", time.Second, "pool/ns/a", "pool/ns/c")
		if log := w.logged(); !strings.Contains(log, "pool=pool/ns/c") || !strings.Contains(log, "gateway=ns/g") {
			t.Errorf("the log does not mention it:\n%s", log)
		}
		expect("that again", 0, "pool/ns/a", "pool/ns/c")
		late := w.followAs(ours, 0, nil, "pool/ns/c")
		expect("the Envoy gets the pool at last", 0, "pool/ns/c")
		_ = late.conn.Close()
		w.after(time.Millisecond)
		expect("the Envoy has disconnected", time.Second, "pool/ns/c")
		// A second Envoy of the Gateway already has the pool from another extproc.
		second := &corev3.Node{Cluster: "ns/g", Id: "2"}
		w.followAs(second, 0, first.versions, "pool/ns/a") // this Envoy gets no response, since it already has the pool
		expect("a second Envoy has it from before", 0, "pool/ns/a")
		expect("a second Envoy has one of two", time.Second, "pool/ns/a", "pool/ns/b")
	})
}

// A Gateway needs the pools that its LLMRoutes refer to, if those pools exist.
func TestPoolsOfGateways(t *testing.T) {
	const two = "kind: Gateway\nmetadata: {namespace: ns, name: g}\n" +
		"spec: {gatewayClassName: headgate, listeners: [{name: one, port: 80, protocol: HTTP}, {name: two, port: 81, protocol: HTTP}]}\n---\n" +
		"kind: Gateway\nmetadata: {namespace: other, name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: one, port: 80, protocol: HTTP}]}\n---\n" +
		"kind: InferencePool\nmetadata: {namespace: ns, name: mistral}\n---\n"
	route := func(namespace, name, parent, pools string) string {
		return fmt.Sprintf("kind: LLMRoute\nmetadata: {namespace: %s, name: %s}\nspec: {parentRefs: [%s], backendRefs: [%s]}\n---\n",
			namespace, name, parent, pools)
	}
	set := network.Set(t, network.Standard(strings.TrimSuffix(two+
		route("ns", "a", "{name: g, sectionName: two}", "{name: mistral}, {name: llama}")+
		route("ns", "b", "{name: g, sectionName: one}", "{name: llama}, {name: absent}")+
		route("ns", "c", "{name: nobody}", "{name: llama}")+
		route("other", "d", "{name: g}", "{name: phi}"), "---\n")))
	w := objects.Build(set)
	w.Offers = attach.Of(w.Network).Offers(w)
	got := fmt.Sprint(eds.Needed(w))
	if want := "map[ns/g:[pool/ns/llama pool/ns/mistral] other/g:[pool/other/phi]]"; got != want {
		t.Errorf("needed are %s, want %s", got, want)
	}
}

// An Envoy with envoy.yaml follows the endpoints of all pools, and Envoys of Gateways those of
// single ones.
func TestStandaloneEnvoyFollowsAllPools(t *testing.T) {
	inMemory(t, func(w *world) {
		w.set(map[string][]string{"pool/ns/a": {"10.0.0.1:80"}, "endpoints": {"10.0.0.1:80"}})
		w.follow(0, nil, "pool/ns/a")
		if w.Standalone() {
			t.Error("the Envoy of a Gateway counts as standalone")
		}
		alone := w.follow(0, nil, "endpoints")
		w.after(time.Millisecond)
		if !w.Standalone() {
			t.Error("no standalone Envoy is found")
		}
		_ = alone.conn.Close()
		w.after(time.Millisecond)
		if w.Standalone() {
			t.Error("the Envoy has gone, and still counts")
		}
	})
}
