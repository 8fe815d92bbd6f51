package place_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/modelmesh"
)

func vmodel(id, target, more string) string {
	return fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: VModel\nmetadata: {name: '%s'}\nspec: {poolRef: {name: p}, target: '%s'%s}\n", id,
		target, more)
}

// brief prints a status in one line: "DEFINED a LOADED" or "TRANSITIONING a LOADED -> b LOADING".
func brief(st *mmesh.VModelStatusInfo) string {
	words := []string{st.GetStatus().String(), st.GetActiveModelId(), st.GetActiveModelStatus().GetStatus().String()}
	if st.GetTargetModelStatus() != nil {
		words = append(words, "->", st.GetTargetModelId(), st.GetTargetModelStatus().GetStatus().String())
	}
	return strings.Join(words, " ")
}

// setV sets a VModel, and returns its status or, if the call fails, the code of the error.
func (a api) setV(r *mmesh.SetVModelRequest) string {
	st, err := a.SetVModel(a.Context(), r)
	if err != nil {
		return status.Code(err).String()
	}
	return brief(st)
}

func (a api) expectV(id, want string) {
	a.Helper()
	a.await(fmt.Sprintf("the VModel %s is %s", id, want), func() bool {
		st, err := a.GetVModelStatus(a.Context(), &mmesh.GetVModelStatusRequest{VModelId: id})
		return err == nil && brief(st) == want
	})
}

func (a api) must(id, source string, now bool) {
	a.Helper()
	if _, code := a.register(a.Context(), id, source, now, now); code != codes.OK {
		a.Fatalf("%s: %v", id, code)
	}
}

// ModelMesh's setVModel answers each kind of call as in kserve/modelmesh 0.12 (VModelManager.java).
func TestSetVModelAnswers(t *testing.T) {
	a := newAPI(t, nil)
	a.must("m1", "sim:", false)
	a.must("m2", "sim:", false)
	a.set(list(a.address, managed(a.management)), vmodel("declared", "m1", ""))
	info := &mmesh.ModelInfo{Type: "sim", Path: "sim:"}
	other := &mmesh.ModelInfo{Type: "sim", Path: "sim:?size=1Mi"}
	for i, c := range []struct {
		r    *mmesh.SetVModelRequest
		want string
	}{
		{&mmesh.SetVModelRequest{TargetModelId: "m1"}, "InvalidArgument"},
		{&mmesh.SetVModelRequest{VModelId: "v"}, "InvalidArgument"},
		{&mmesh.SetVModelRequest{VModelId: "../v", TargetModelId: "m1"}, "InvalidArgument"},
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m1", ModelInfo: &mmesh.ModelInfo{}}, "InvalidArgument"},
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m1", ModelInfo: other}, "AlreadyExists"},
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m9"}, "NotFound"},
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m1", UpdateOnly: true}, "NotFound"},
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m1", ExpectedTargetModelId: "m2"}, "FailedPrecondition"},
		// The calls before this one created no VModel, so this call creates it.
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m1", ExpectedTargetModelId: "m1", Owner: "o"}, "DEFINED m1 NOT_LOADED"},
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m1", Owner: "o"}, "DEFINED m1 NOT_LOADED"},
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m1"}, "AlreadyExists"},
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m2", Owner: "x"}, "AlreadyExists"},
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m2", ExpectedTargetModelId: "m9", Owner: "o"}, "FailedPrecondition"},
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m1", ExpectedTargetModelId: "m9", Owner: "o"}, "DEFINED m1 NOT_LOADED"},
		{
			&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m2", ExpectedTargetModelId: "m1", UpdateOnly: true, Owner: "o"},
			"DEFINED m2 NOT_LOADED",
		},
		// A call may also register the target model, and request its load.
		{
			&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m3", ModelInfo: info, LoadNow: true, Sync: true, Owner: "o"},
			"DEFINED m3 LOADED",
		},
		{&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m4", ModelInfo: info, Sync: true, Owner: "o"}, "DEFINED m4 LOADED"},
		// A declared VModel can be changed only through its object.
		{&mmesh.SetVModelRequest{VModelId: "declared", TargetModelId: "m1"}, "DEFINED m1 NOT_LOADED"},
		{&mmesh.SetVModelRequest{VModelId: "declared", TargetModelId: "m2"}, "FailedPrecondition"},
	} {
		if got := a.setV(c.r); got != c.want {
			t.Errorf("%d: %v: %s, want %s", i, c.r, got, c.want)
		}
	}
	if st, err := a.GetVModelStatus(t.Context(), &mmesh.GetVModelStatusRequest{VModelId: "v", Owner: "x"}); err != nil ||
		brief(st) != "NOT_FOUND  NOT_FOUND" {
		t.Errorf("of another owner: %s, %v", brief(st), err)
	}
	for _, r := range []*mmesh.DeleteVModelRequest{{VModelId: "v", Owner: "x"}, {VModelId: "none"}} {
		if _, err := a.DeleteVModel(t.Context(), r); err != nil {
			t.Errorf("%v: %v", r, err)
		}
	}
	if st, _ := a.GetVModelStatus(t.Context(), &mmesh.GetVModelStatusRequest{VModelId: "v", Owner: "o"}); brief(st) != "DEFINED m4 LOADED" {
		t.Errorf("deleted by another: %s", brief(st))
	}
	if _, err := a.DeleteVModel(t.Context(),
		&mmesh.DeleteVModelRequest{VModelId: "declared"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("what objects declare: %v", err)
	}
	if _, err := a.DeleteVModel(t.Context(), &mmesh.DeleteVModelRequest{VModelId: "v", Owner: "o"}); err != nil {
		t.Error(err)
	}
	if goes := a.board.goes("v"); goes != "" || a.board.registered("v") {
		t.Errorf("deleted, it goes to %s, registered: %v", goes, a.board.registered("v"))
	}
}

// Requests go to the active model until the target is loaded, even if control restarts meanwhile.
func TestVModelChangesWhenItsTargetIsLoaded(t *testing.T) {
	a := newAPI(t, nil)
	a.must("a", "sim:?load=1ms", true)
	a.must("b", "sim:?load=1s", false)
	if got := a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "a"}); got != "DEFINED a LOADED" {
		t.Error(got)
	}
	if !a.board.registered("v") {
		t.Error("extprocs are not told that clients may name it")
	}
	if got := a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "b"}); got != "TRANSITIONING a LOADED -> b LOADING" {
		t.Error(got)
	}
	a.restart()
	a.Server = modelmesh.New(a.Placer)
	a.await("it goes somewhere", func() bool { return a.board.goes("v") != "" })
	if goes := a.board.goes("v"); goes != "a" || !a.board.registered("v") {
		t.Errorf("after the restart it goes to %s, registered: %v", goes, a.board.registered("v"))
	}
	a.expectV("v", "DEFINED b LOADED")
	if goes := a.board.goes("v"); goes != "b" {
		t.Errorf("it goes to %s", goes)
	}
	a.expect("a", mmesh.ModelStatusInfo_LOADED) // a keeps its copies, so a change back needs no load
	if got := a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "a"}); got != "DEFINED a LOADED" {
		t.Errorf("back: %s", got)
	}
}

func TestVModelStaysIfItsTargetCannotBeLoaded(t *testing.T) {
	told := &recorder{}
	w, r := newRecordedWorld(t, told), serveRuntime(t, "", nil)
	w.set(list(r.address, managed(r.management)))
	w.await("the runtime is ready", w.board.isReady)
	a := api{w, modelmesh.New(w.Placer), r}
	a.must("a", "sim:", true)
	a.must("bad", "sim:?fail=INTERNAL:no%20such%20weights", false)
	a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "a"})
	if got := a.setV(&mmesh.SetVModelRequest{
		VModelId: "v", TargetModelId: "bad",
		Sync: true,
	}); got != "TRANSITION_FAILED a LOADED -> bad LOADING_FAILED" {
		t.Error(got)
	}
	if goes := a.board.goes("v"); goes != "a" {
		t.Errorf("it goes to %s", goes)
	}
	a.await("its status says why", func() bool {
		return strings.Contains(told.vmodel("v"), "a TransitionFailed: requests go to a: bad cannot be loaded: ") &&
			strings.Contains(told.vmodel("v"), "no such weights")
	})
	if got := a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "bad", Force: true}); got != "DEFINED bad LOADING_FAILED" {
		t.Errorf("with force: %s", got)
	}
}

// A model that receives the requests of a VModel stays registered. A model that was registered
// together with a VModel may be deleted together with it.
func TestModelStaysWhileAVModelNamesIt(t *testing.T) {
	a := newAPI(t, nil)
	info := &mmesh.ModelInfo{Type: "sim", Path: "sim:"}
	for _, id := range []string{"m1", "m2"} {
		if got := a.setV(&mmesh.SetVModelRequest{
			VModelId: "v", TargetModelId: id, ModelInfo: info,
			AutoDeleteTargetModel: true,
		}); got != "DEFINED "+id+" NOT_LOADED" {
			t.Error(got)
		}
	}
	a.expect("m1", mmesh.ModelStatusInfo_NOT_FOUND)
	if _, err := a.UnregisterModel(t.Context(),
		&mmesh.UnregisterModelRequest{ModelId: "m2"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "v") {
		t.Errorf("%v", err)
	}
	a.restart()
	a.Server = modelmesh.New(a.Placer)
	a.expect("m2", mmesh.ModelStatusInfo_NOT_LOADED)
	if _, err := a.DeleteVModel(t.Context(), &mmesh.DeleteVModelRequest{VModelId: "v"}); err != nil {
		t.Error(err)
	}
	a.expect("m2", mmesh.ModelStatusInfo_NOT_FOUND)
	a.restart()
	a.Server = modelmesh.New(a.Placer)
	a.expectV("v", "NOT_FOUND  NOT_FOUND")
	a.expect("m2", mmesh.ModelStatusInfo_NOT_FOUND)
	// A model that keeps its copies after a change of target stays registered.
	for _, id := range []string{"m3", "m4"} {
		a.setV(&mmesh.SetVModelRequest{
			VModelId: "v", TargetModelId: id, ModelInfo: info, AutoDeleteTargetModel: true, LoadNow: true,
			Sync: true,
		})
	}
	a.expectV("v", "DEFINED m4 LOADED")
	a.restart() // afterwards, no call is in progress
	a.Server = modelmesh.New(a.Placer)
	a.expect("m3", mmesh.ModelStatusInfo_LOADED)
}

// If the deletion of a model together with its VModel fails, it is repeated after a restart, as
// soon as any VModel changes.
func TestFailedDeletionIsRepeatedLater(t *testing.T) {
	w := newRecordedWorld(t, &recorder{refuses: errors.New("no space")})
	w.set()
	a := api{world: w, Server: modelmesh.New(w.Placer)}
	info := &mmesh.ModelInfo{Type: "sim", Path: "sim:"}
	for _, id := range []string{"m1", "m2"} {
		a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: id, ModelInfo: info, AutoDeleteTargetModel: true})
	}
	w.stop() // afterwards, no call is in progress
	w.told.refuses = nil
	w.start()
	w.SetWorld(w.world)
	a.Server = modelmesh.New(w.Placer)
	a.setV(&mmesh.SetVModelRequest{VModelId: "w", TargetModelId: "m2"})
	a.expect("m1", mmesh.ModelStatusInfo_NOT_FOUND)
	a.expect("m2", mmesh.ModelStatusInfo_NOT_LOADED)
}

// The records of an earlier process do not apply to a new VModel with the same id.
func TestNewVModelIgnoresOldRecords(t *testing.T) {
	told := &recorder{}
	w, r := newRecordedWorld(t, told), serveRuntime(t, "", nil)
	w.set(list(r.address, managed(r.management)))
	a := api{w, modelmesh.New(w.Placer), r}
	for _, id := range []string{"a", "b"} {
		a.must(id, "sim:", true)
	}
	a.must("c", "sim:?load=10s", false)
	for _, id := range []string{"a", "b"} {
		a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: id})
	}
	a.stop()
	before := told.previous("v")
	clear(told.vmodels)
	a.start()
	a.SetWorld(a.world.world)
	a.Server = modelmesh.New(a.Placer)
	a.await("it has a status again", func() bool { return told.previous("v") != "" && a.board.goes("v") == "b" })
	if after := told.previous("v"); after != before || !strings.HasPrefix(after, "a until ") {
		t.Errorf("before the restart its previous model was %s, and %s after", before, after)
	}
	if _, err := a.DeleteVModel(t.Context(), &mmesh.DeleteVModelRequest{VModelId: "v"}); err != nil {
		t.Error(err)
	}
	if got := a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "c"}); got != "DEFINED c NOT_LOADED" {
		t.Error(got)
	}
}

// The object of a registered VModel still has the earlier target for a moment after a change. That
// target is ignored. Later edits of the object are applied.
func TestObjectOfARegisteredVModelFollows(t *testing.T) {
	a := newAPI(t, nil)
	for _, id := range []string{"a", "b", "c"} {
		a.must(id, "sim:", false)
	}
	a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "a"})
	// The object has the name that ModelMesh's API gave it.
	a.must("v", "sim:", false)
	name := a.objectOf("v")
	if _, err := a.UnregisterModel(t.Context(), &mmesh.UnregisterModelRequest{ModelId: "v"}); err != nil {
		t.Fatal(err)
	}
	a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "b"})
	for _, c := range []struct {
		name       string
		generation int
		says, want string
	}{
		{"another", 7, "c", "b"}, {name, 1, "a", "b"}, {name, 2, "b", "b"}, {name, 3, "c", "c"},
	} {
		a.set(list(a.address, managed(a.management)),
			strings.Replace(vmodel(c.name, c.says, ", id: v"), "metadata: {", fmt.Sprintf("metadata: {generation: %d, ", c.generation), 1))
		if goes := a.board.goes("v"); goes != c.want {
			t.Errorf("%s of generation %d says %s: it goes to %s, want %s", c.name, c.generation, c.says, goes, c.want)
		}
	}
	if _, err := a.DeleteVModel(t.Context(), &mmesh.DeleteVModelRequest{VModelId: "v"}); err != nil {
		t.Error(err)
	}
	a.expectV("v", "NOT_FOUND  NOT_FOUND")
}

// The status names the extprocs that may still send requests to the earlier target.
func TestStatusNamesExtprocsThatAreBehind(t *testing.T) {
	w := newRecordedWorld(t, &recorder{})
	w.board.setBehind("x1", "x2")
	w.set(object("a", ""), vmodel("v", "a", ""))
	w.await("it names them", func() bool {
		return w.told.vmodel("v") == "a Transitioning: requests go to a; these extprocs may still send them to an earlier target: x1, x2"
	})
	w.board.setBehind()
	w.await("all have moved", func() bool { return w.told.vmodel("v") == "a Defined: requests go to a" })
}

// A call that waits for a change of target returns at its deadline, and the change continues.
func TestVModelChangeContinuesAfterADeadline(t *testing.T) {
	a := newAPI(t, nil)
	a.must("a", "sim:", true)
	a.must("b", "sim:?load=500ms", false)
	a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "a"})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.SetVModel(ctx, &mmesh.SetVModelRequest{
		VModelId: "v", TargetModelId: "b",
		Sync: true,
	}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("%v", err)
	}
	a.expectV("v", "TRANSITIONING a LOADED -> b LOADING")
	if got := a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "b", Sync: true}); got != "DEFINED b LOADED" {
		t.Errorf("with sync: %s", got)
	}
}

// Objects can do what clients can do, such as change a target. They can also set a canary or use
// the name of a model.
func TestDeclaredVModels(t *testing.T) {
	told := &recorder{}
	w, r := newRecordedWorld(t, told), serveRuntime(t, "", nil)
	model := func(id, source string) string {
		return object(id, ", type: sim, source: '"+source+"', copies: {min: 1}")
	}
	base := []string{
		list(r.address, managed(r.management)), model("a", "sim:"), model("b", "sim:?load=200ms"),
		model("c", "sim:?load=200ms"),
	}
	w.set(append(base, vmodel("v", "a", ""))...)
	w.await("it is defined", func() bool { return told.vmodel("v") == "a Defined: requests go to a" })
	w.awaitCopies("a", r.address+" loaded")
	w.set(append(base, vmodel("v", "b", ", canary: {target: c, percent: 10}"))...)
	w.await("it has moved", func() bool {
		return told.vmodel("v") == "b Defined: requests go to b, 10 % of them to c" && w.board.goes("v") == "b, 10 % to c"
	})
	w.restart()
	w.await("it is as it was", func() bool { return w.board.goes("v") == "b, 10 % to c" })
	w.set(append(base, vmodel("v", "missing", ""))...)
	w.await("its status says why it stays", func() bool {
		return told.vmodel("v") == "b TargetNotFound: requests go to b: no Model, LLMRoute or engine of InferencePool p has missing"
	})
	w.set(append(base, vmodel("v", "b", ""), vmodel("lost", "a", ""))...)
	w.await("both are defined", func() bool {
		return told.vmodel("v") == "b Defined: requests go to b" && told.vmodel("lost") == "a Defined: requests go to a"
	})
	w.set(base...)
	w.await("their status is gone", func() bool {
		return told.vmodel("v")+told.vmodel("lost")+w.board.goes("v")+
			w.board.goes("lost") == ""
	})
}

// If a client's VModel cannot be recorded, the call fails with an error that gives the reason.
func TestVModelThatCannotBeRecorded(t *testing.T) {
	w := newRecordedWorld(t, &recorder{})
	w.set()
	a := api{world: w, Server: modelmesh.New(w.Placer)}
	a.must("a", "sim:", false)
	w.told.setKeeps(errors.New("no space"))
	if got := a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "a"}); got != "Internal" {
		t.Error(got)
	}
	w.told.setKeeps(nil)
	if got := a.setV(&mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "a"}); got != "DEFINED a NOT_LOADED" {
		t.Errorf("once more: %s", got)
	}
	w.restart()
	a.Server = modelmesh.New(w.Placer)
	a.expectV("v", "DEFINED a NOT_LOADED")
}
