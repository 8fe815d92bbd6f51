package place_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/modelmesh"
	"github.com/headgate/headgate/headgate/simulated/runtime"
)

// api is ModelMesh's API, served by a Placer with one simulated runtime.
type api struct {
	*world
	*modelmesh.Server
	modelRuntime
}

func newAPI(t *testing.T, change func(*runtime.Config)) api {
	t.Helper()
	w, r := newWorld(t), serveRuntime(t, "", change)
	w.set(list(r.address, managed(r.management)))
	w.await("the runtime is ready", w.board.isReady)
	return api{w, modelmesh.New(w.Placer), r}
}

// register registers a model with a source. It returns the model's status and the gRPC code.
func (a api) register(ctx context.Context, id, source string, now, sync bool) (*mmesh.ModelStatusInfo, codes.Code) {
	st, err := a.RegisterModel(ctx, &mmesh.RegisterModelRequest{
		ModelId: id, ModelInfo: &mmesh.ModelInfo{Type: "sim", Path: source}, LoadNow: now, Sync: sync,
	})
	return st, status.Code(err)
}

func (a api) expect(id string, want mmesh.ModelStatusInfo_ModelStatus) {
	a.Helper()
	a.await(fmt.Sprintf("%s is %v", id, want), func() bool {
		st, err := a.GetModelStatus(a.Context(), &mmesh.GetStatusRequest{ModelId: id})
		return err == nil && st.GetStatus() == want
	})
}

func TestModelsLifeByModelMeshsAPI(t *testing.T) {
	a := newAPI(t, nil)
	ctx := t.Context()
	const id = "模型/v1"
	for range 2 { // a second registration changes nothing
		if st, code := a.register(ctx, id, "sim:?load=50ms", false, false); code != codes.OK ||
			st.GetStatus() != mmesh.ModelStatusInfo_NOT_LOADED {
			t.Errorf("%v, %v", st, code)
		}
	}
	if _, code := a.register(ctx, id, "sim:?load=51ms", false, false); code != codes.AlreadyExists {
		t.Errorf("with another path: %v", code)
	}
	st, err := a.EnsureLoaded(ctx, &mmesh.EnsureLoadedRequest{ModelId: id})
	if err != nil || st.GetStatus() != mmesh.ModelStatusInfo_LOADING {
		t.Errorf("without sync: %v, %v", st, err)
	}
	if st, err = a.EnsureLoaded(ctx, &mmesh.EnsureLoadedRequest{ModelId: id, Sync: true}); err != nil ||
		st.GetStatus() != mmesh.ModelStatusInfo_LOADED ||
		len(st.GetModelCopyInfos()) != 1 || st.GetModelCopyInfos()[0].GetLocation() != a.address {
		t.Errorf("with sync: %v, %v", st, err)
	}
	if st, code := a.register(ctx, id, "sim:?load=50ms", true, true); code != codes.OK || st.GetStatus() != mmesh.ModelStatusInfo_LOADED {
		t.Errorf("registered again, to be loaded: %v, %v", st, code)
	}
	for range 2 { // in the second round, the model is unknown
		if _, err := a.UnregisterModel(ctx, &mmesh.UnregisterModelRequest{ModelId: id}); err != nil {
			t.Error(err)
		}
	}
	a.expect(id, mmesh.ModelStatusInfo_NOT_FOUND)
	if _, err := a.EnsureLoaded(ctx, &mmesh.EnsureLoadedRequest{ModelId: id}); status.Code(err) != codes.NotFound {
		t.Errorf("ensured after it was unregistered: %v", err)
	}
	a.await("it is unloaded", func() bool { return a.count("unloaded "+id) == 1 })
	if want := []string{"purge", "load " + id, "loaded " + id, "unload " + id, "unloaded " + id}; !slices.Equal(a.events(), want) {
		t.Errorf("the runtime was told %v", a.events())
	}
}

// A deadline ends the wait for a load, but not the load.
func TestLoadContinuesAfterADeadline(t *testing.T) {
	a := newAPI(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, code := a.register(ctx, "m", "sim:?load=300ms", true, true); code != codes.DeadlineExceeded {
		t.Errorf("%v", code)
	}
	a.expect("m", mmesh.ModelStatusInfo_LOADING)
	a.expect("m", mmesh.ModelStatusInfo_LOADED)
	if n := a.count("load m"); n != 1 {
		t.Errorf("%d loads", n)
	}
}

func TestWaitingRequestsGetTheEnginesMessage(t *testing.T) {
	a := newAPI(t, nil)
	st, code := a.register(t.Context(), "m", "sim:?fail=FAILED_PRECONDITION:no%20such%20file", true, true)
	if code != codes.OK || st.GetStatus() != mmesh.ModelStatusInfo_LOADING_FAILED || len(st.GetErrors()) != 1 ||
		!strings.Contains(st.GetErrors()[0], "no such file") {
		t.Errorf("%v, %v", st, code)
	}
	st, code = a.register(t.Context(), "large", "sim:?size=2Gi", true, true)
	if code != codes.OK || st.GetStatus() == mmesh.ModelStatusInfo_LOADED {
		t.Errorf("%v, %v", st, code)
	}
	if a.count("load large") != 0 {
		t.Errorf("the runtime was told to load what it has no room for: %v", a.events())
	}
	t.Logf("%v", st)
}

// With 1 GiB, 50 MiB for each model of unknown size and six concurrent loads, 18 models fit and 75
// MiB remain. So the 19th model is loaded while the oldest model, which is evicted for it, is still
// being unloaded.
func TestNineteenthModelEvictsTheOldest(t *testing.T) {
	a := newAPI(t, func(c *runtime.Config) { c.Unpredicting = true })
	// With the default policy, measured load times could decide which model is evicted.
	a.set(settings("eviction: lru"), list(a.address, managed(a.management)))
	for i := 1; i <= 18; i++ {
		if st, code := a.register(t.Context(), fmt.Sprintf("m%02d", i), "sim:?unload=500ms", true,
			true); st.GetStatus() != mmesh.ModelStatusInfo_LOADED {
			t.Fatalf("m%02d: %v, %v", i, st, code)
		}
	}
	if n := len(a.Models()); n != 18 {
		t.Fatalf("%d models are loaded", n)
	}
	if st, code := a.register(t.Context(), "m19", "sim:", true, true); st.GetStatus() != mmesh.ModelStatusInfo_LOADED {
		t.Fatalf("m19: %v, %v", st, code)
	}
	a.await("the oldest has left", func() bool { return a.count("unloaded m01") == 1 })
	events := a.events()
	if load, left := slices.Index(events, "load m19"), slices.Index(events, "unloaded m01"); load < 0 || load > left {
		t.Errorf("m19 was loaded after m01 had left: %v", events[36:])
	}
	if n := len(a.Models()); n != 18 {
		t.Errorf("%d models are loaded: %v", n, events)
	}
	a.expect("m01", mmesh.ModelStatusInfo_NOT_LOADED)
	a.expect("m02", mmesh.ModelStatusInfo_LOADED)
}

// If registered models are stored as objects, the object of an unregistered model exists for a
// moment longer. A client can register the model again in that moment.
func TestModelCanBeRegisteredAgainAtOnce(t *testing.T) {
	a := newAPI(t, nil)
	ctx := t.Context()
	const id = "churn"
	if _, code := a.register(ctx, id, "sim:?load=1ms", false, false); code != codes.OK {
		t.Fatal(code)
	}
	runtimes := list(a.address, managed(a.management))
	// The object has the name that ModelMesh's API gave it.
	a.set(runtimes, object(a.objectOf(id), ", id: churn, type: sim, source: 'sim:?load=1ms'"))
	if _, err := a.UnregisterModel(ctx, &mmesh.UnregisterModelRequest{ModelId: id}); err != nil {
		t.Fatal(err)
	}
	if st, err := a.GetModelStatus(ctx, &mmesh.GetStatusRequest{ModelId: id}); err != nil ||
		st.GetStatus() != mmesh.ModelStatusInfo_NOT_FOUND {
		t.Errorf("unregistered, it is %v, %v", st, err)
	}
	if _, code := a.register(ctx, id, "sim:?load=2ms", false, false); code != codes.OK {
		t.Errorf("registered again as another: %v", code)
	}
	a.set(runtimes) // the object is gone, but the model is registered
	if st, err := a.GetModelStatus(ctx, &mmesh.GetStatusRequest{ModelId: id}); err != nil ||
		st.GetStatus() != mmesh.ModelStatusInfo_NOT_LOADED {
		t.Errorf("registered again, it is %v, %v", st, err)
	}
}

// If the deletion of a model fails, the model remains registered, and a client can try again.
func TestModelStaysRegisteredIfItsDeletionFails(t *testing.T) {
	w := newWorld(t)
	w.set()
	w.told = &recorder{refuses: errors.New("connection refused")}
	w.restart()
	a := api{world: w, Server: modelmesh.New(w.Placer)}
	ctx := t.Context()
	if _, code := a.register(ctx, "churn", "sim:", false, false); code != codes.OK {
		t.Fatal(code)
	}
	for range 2 {
		if _, err := a.UnregisterModel(ctx, &mmesh.UnregisterModelRequest{ModelId: "churn"}); status.Code(err) != codes.Internal ||
			!strings.Contains(err.Error(), "refused") {
			t.Errorf("it is unregistered: %v", err)
		}
		a.expect("churn", mmesh.ModelStatusInfo_NOT_LOADED)
	}
	w.told.refuses = nil
	if _, err := a.UnregisterModel(ctx, &mmesh.UnregisterModelRequest{ModelId: "churn"}); err != nil {
		t.Error(err)
	}
	a.expect("churn", mmesh.ModelStatusInfo_NOT_FOUND)
}

// objectOf returns the name of the object that stores a registered model.
func (a api) objectOf(id string) string {
	st, there := a.Status(key(id))
	if !there {
		a.Fatalf("%s is not there", id)
	}
	return st.Object.Name
}

// If a load has failed at all endpoints, the status becomes LOADING_FAILED at once, with one entry
// for the endpoint, even while the engine is still being told to unload the model.
func TestStatusFailsWithTheLoad(t *testing.T) {
	w := newWorld(t)
	r := serveRuntime(t, "", func(c *runtime.Config) { c.LoadTimeout = 100 * time.Millisecond })
	w.set(list(r.address, managed(r.management)))
	w.await("it is looked at", w.board.isReady)
	api := modelmesh.New(w.Placer)
	st, err := api.RegisterModel(t.Context(), &mmesh.RegisterModelRequest{
		ModelId: "slow", ModelInfo: &mmesh.ModelInfo{Type: "sim", Path: "sim:?load=1500ms&stubborn"}, LoadNow: true, Sync: true,
	})
	if got := w.copies("slow"); got != r.address+" unloading" { // otherwise the test checks nothing
		t.Errorf("it is at %q", got)
	}
	if err != nil || st.GetStatus() != mmesh.ModelStatusInfo_LOADING_FAILED || len(st.GetModelCopyInfos()) != 1 ||
		st.GetModelCopyInfos()[0].GetCopyStatus() != mmesh.ModelStatusInfo_LOADING_FAILED {
		t.Errorf("%v, %v", st, err)
	}
}
