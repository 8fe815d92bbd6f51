package place_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
)

// endpointOf returns the endpoint of a view with this address.
func endpointOf(v decide.View, address string) decide.EndpointView {
	for _, e := range v.Endpoints {
		if e.Address == address {
			return e
		}
	}
	return decide.EndpointView{}
}

// modelOf returns the model of a view with this id.
func modelOf(v decide.View, id string) decide.ModelView {
	for _, m := range v.Models {
		if m.ID == id {
			return m
		}
	}
	return decide.ModelView{}
}

// A pool without endpoints and models is also in the view.
func TestViewOfAnEmptyPool(t *testing.T) {
	w := newWorld(t)
	w.set()
	if v := w.View(); len(v.Pools) != 1 || v.Pools[0] != (decide.PoolView{Name: pool.String()}) || len(v.Endpoints)+len(v.Models) > 0 {
		t.Errorf("it is seen as %+v", v)
	}
}

// If no object states an engine's kind, the view takes it from the engine's metrics page.
func TestViewFindsTheKindOfAnEngine(t *testing.T) {
	w := newWorld(t)
	e := serveVLLM(t)
	w.set(list(e.address, ""))
	w.await("the engine is ready", func() bool { return endpointOf(w.View(), e.address).State == decide.Ready })
	if is := endpointOf(w.View(), e.address).Engine; is != "vllm" {
		t.Errorf("it is called %q, want vllm", is)
	}
}

// The view shows two kinds of engines, and an engine that accepts connections without answering. It
// shows their copies, the reasons why models wait, and the error messages of engines. It does not
// show the sources of models.
func TestViewOfAFleet(t *testing.T) {
	w := newWorld(t)
	e, runtime := serveVLLM(t), serveRuntime(t, "", nil)
	l := listen(t, "tcp", "127.0.0.1:0")
	defer l.Close()
	gone := l.Addr().String()
	w.set(settings("source: 'sim:', maxAdapters: 2, hostAdapters: 6"), list(e.address, ", engine: vllm"),
		list(runtime.address, managed(runtime.management)), list(gone, ""),
		object("x", ", copies: {min: 1, max: 1}, type: lora"),
		object("bad", ", baseModel: another, source: 'sim:?fail=FAILED_PRECONDITION:no%20such%20file'"))
	w.await("x is loaded", func() bool { return strings.HasSuffix(w.copies("x"), " loaded") })
	w.Wanted("extproc", key("bad"), decide.Want{Requests: 3, Since: time.Now()})
	w.InFlight(map[decide.CopyKey]int{{ModelKey: key("x"), Endpoint: e.address}: 5, {ModelKey: key("x"), Endpoint: runtime.address}: 5})
	if all := w.View().Pools[0].WarmWindowSeconds; all != nil {
		t.Errorf("a model was used %v s ago that is not there", *all)
	}
	w.await("an engine said what is wrong with the other", func() bool { return len(modelOf(w.View(), "bad").Failures) > 0 })
	_ = l.Close()
	w.await("the engine that is gone is down", func() bool {
		at := endpointOf(w.View(), gone)
		return at.State == decide.Down && strings.Contains(at.Fault, "refused")
	})

	v := w.View()
	vllm, managed := endpointOf(v, e.address), endpointOf(v, runtime.address)
	if vllm.Pod != "default/at-"+strings.NewReplacer(".", "-", ":", "-").Replace(e.address) || !vllm.Listed || vllm.Engine != "vllm" ||
		vllm.State != decide.Ready || vllm.Slots != 2 || vllm.Static || vllm.Fault != "" {
		t.Errorf("the vLLM is seen as %+v", vllm)
	}
	if vllm.HostAdapters != 6 || managed.HostAdapters != 0 {
		t.Errorf("the vLLM is seen as %+v, the model runtime as %+v", vllm, managed)
	}
	if managed.Engine != "modelruntime" || managed.State != decide.Ready || managed.UsableBytes <= 0 || managed.UsableBytes >= 1<<30 ||
		managed.Loads != 6 {
		t.Errorf("the model runtime is seen as %+v", managed)
	}
	if vllm.InFlight+managed.InFlight != 5 {
		t.Errorf("5 requests are in flight, and seen are %d and %d", vllm.InFlight, managed.InFlight)
	}
	copies := 0
	for _, at := range v.Endpoints {
		for _, c := range at.Copies {
			if c.ID == "x" {
				copies++
				if c.Pool != pool.String() || c.State != decide.Loaded || c.For != "least" || c.Since.IsZero() {
					t.Errorf("the copy is seen as %+v", c)
				}
			}
		}
	}
	if x := modelOf(v, "x"); copies != 1 || !x.Known || x.Least != 1 || x.Last == nil || x.Last.Call != "load" || x.Last.Error != "" {
		t.Errorf("x has %d copies, and is seen as %+v", copies, x)
	}
	bad := modelOf(v, "bad")
	if bad.Queued != 3 || bad.Since.IsZero() || !strings.Contains(bad.Failures[0].Message, "no such file") ||
		!bad.Failures[0].Until.After(v.At) {
		t.Errorf("what fails is seen as %+v", bad)
	}
	if len(v.Pools) != 1 || v.Pools[0].Name != pool.String() || v.Pools[0].Free <= 0 {
		t.Errorf("the pools are seen as %+v", v.Pools)
	}
	text, err := json.Marshal(v)
	if err != nil || strings.Contains(string(text), "sim:") {
		t.Errorf("%v; it tells where models come from: %s", err, text)
	}
}

// The view shows declared and registered VModels, sorted, with their active models and targets, and
// why requests do not go to the target yet.
func TestViewOfVModels(t *testing.T) {
	w := newWorld(t)
	e := serveVLLM(t)
	vmodel := func(id, target string) string {
		return "apiVersion: inference.x-k8s.io/v1alpha1\nkind: VModel\nmetadata: {name: '" + id +
			"'}\nspec: {poolRef: {name: p}, target: '" + target + "'}\n"
	}
	objects := []string{
		settings("source: 'sim:', maxAdapters: 4"), list(e.address, ", engine: vllm"), object("v1", ", copies: {min: 1, max: 1}"),
		object("bad", ", source: 'sim:?fail=FAILED_PRECONDITION:no%20such%20file'"),
	}
	w.set(append(objects, vmodel("sql", "v1"))...)
	if v := w.View(); len(v.VModels) != 1 {
		t.Errorf("there are %+v", v.VModels)
	}
	w.await("v1 is loaded", func() bool { return strings.HasSuffix(w.copies("v1"), " loaded") })
	w.set(append(objects, vmodel("sql", "bad"))...)
	w.await("sql cannot move", func() bool { return w.View().VModels[0].Reason == v1alpha1.ReasonTransitionFailed })
	theirs := &v1alpha1.VModel{ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace, Name: "theirs"}}
	theirs.Spec = v1alpha1.VModelSpec{ID: "a", PoolRef: v1alpha1.PoolReference{Name: pool.Name}, Target: "v1"}
	if err := w.SetVModel(theirs, nil, decide.Conditions{}); err != nil {
		t.Fatal(err)
	}

	all := w.View().VModels
	if len(all) != 2 {
		t.Fatalf("there are %+v", all)
	}
	if want := (decide.VModelView{
		Pool: pool.String(), ID: "a", Target: "v1", Active: "v1", Reason: v1alpha1.ReasonDefined,
		Message: "requests go to v1",
	}); all[0] != want {
		t.Errorf("the client's is seen as %+v, want %+v", all[0], want)
	}
	sql := all[1]
	if sql.ID != "sql" || sql.Target != "bad" || sql.Active != "v1" ||
		!strings.HasPrefix(sql.Message, "requests go to v1: bad cannot be loaded: ") ||
		!strings.Contains(sql.Message, "the last one said: 404") {
		t.Errorf("the object's is seen as %+v", sql)
	}
}
