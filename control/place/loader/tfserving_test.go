package loader

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/api/tensorflow"
	"github.com/headgate/headgate/headgate/simulated/repository"
	"github.com/headgate/headgate/internal/engine"
)

// listScenarios test the list of a TensorFlow Serving. They fail if a model is unloaded without
// reason, loaded again although it was there, or loaded after an unload.
var listScenarios = []struct {
	name string
	run  func(p *scene)
}{
	{"what control had loaded stays when it starts anew", func(p *scene) {
		p.put("a", repository.Model{})
		p.put("b", repository.Model{})
		p.put("gone", repository.Model{})
		p.must("a")
		p.must("gone")
		p.done("an unload", p.unloadIn("gone", time.Minute))
		p.anew(p.model("a"), p.model("gone"), p.model("never"), p.model("org/m"))
		p.look(Record{}, []string{"a"}, "gone", "never", "b")
		p.must("b")
		p.look(Record{}, []string{"a", "b"}, "gone")
		p.loaded("a", 1)
		p.loaded("gone", 1)
		p.loaded("never", 0)
	}},
	{"what nobody recalls leaves with the first change", func(p *scene) {
		p.put("theirs", repository.Model{})
		p.put("a", repository.Model{})
		p.must("theirs")
		p.anew()
		p.look(Record{}, nil, "theirs")
		p.must("a")
		if now, err := p.serving().stage(p.within(time.Minute), "theirs"); err != nil || now.Stage != engine.Stored {
			p.Errorf("it is %+v, %v", now, err)
		}
	}},
	{"what somebody else configured is taken over by a load, and not loaded again", func(p *scene) {
		p.put("theirs", repository.Model{})
		p.put("a", repository.Model{})
		p.must("theirs")
		p.anew()
		p.look(Record{}, nil, "theirs")
		p.must("theirs")
		p.must("a")
		p.look(Record{}, []string{"theirs", "a"})
		p.loaded("theirs", 1)
	}},
	{"what somebody else configured can be unloaded", func(p *scene) {
		p.put("theirs", repository.Model{})
		p.must("theirs")
		p.anew()
		p.look(Record{}, nil, "theirs")
		p.done("an unload", p.unloadIn("theirs", time.Minute))
		if now, err := p.serving().stage(p.within(time.Minute), "theirs"); err != nil || now.Stage != engine.Stored {
			p.Errorf("it is %+v, %v", now, err)
		}
	}},
	{"what is recalled later changes nothing", func(p *scene) {
		p.put("a", repository.Model{})
		p.put("other", repository.Model{})
		p.loader.Recall([]Model{p.model("other")})
		p.must("a")
		p.look(Record{}, []string{"a"}, "other")
		p.loaded("other", 0)
	}},
	{"a load that is on its way when control starts anew is taken up", func(p *scene) {
		p.put("a", repository.Model{})
		p.put("slow", repository.Model{Load: slowly})
		p.must("a")
		p.want("a load", p.loadIn("slow", late), Unclear, "")
		p.anew(p.model("a"), p.model("slow"))
		p.look(Record{}, []string{"a"})
		p.must("slow")
		p.look(Record{}, []string{"a", "slow"})
		p.loaded("a", 1)
		p.loaded("slow", 1)
	}},
	{"loads at once lose none", func(p *scene) {
		names := []string{"a", "b", "c", "d"}
		var over sync.WaitGroup
		for _, name := range names {
			p.put(name, repository.Model{Load: late})
			over.Go(func() { p.done(name, p.loadIn(name, time.Minute)) })
		}
		over.Wait()
		p.look(Record{}, names)
		for _, name := range names {
			p.loaded(name, 1)
		}
	}},
	{"a load and an unload at once lose none", func(p *scene) {
		p.put("a", repository.Model{})
		p.put("b", repository.Model{Load: late})
		p.put("c", repository.Model{})
		p.must("a")
		p.must("c")
		var over sync.WaitGroup
		over.Go(func() { p.done("a load", p.loadIn("b", time.Minute)) })
		over.Go(func() { p.done("an unload", p.unloadIn("a", time.Minute)) })
		over.Wait()
		p.look(Record{}, []string{"b", "c"}, "a")
		p.loaded("c", 1)
	}},
	{"a load that waits for another does not begin when its time is over", func(p *scene) {
		p.put("slow", repository.Model{Load: slowly})
		p.put("a", repository.Model{})
		var over sync.WaitGroup
		over.Go(func() { p.done("a load", p.loadIn("slow", time.Minute)) })
		time.Sleep(late)
		p.want("another load", p.loadIn("a", late), Unreached, "one list of models after the other")
		p.want("an unload", p.unloadIn("a", late/2), Unclear, "one list of models after the other")
		over.Wait()
		p.loaded("a", 0)
	}},
	{"a model that failed is off the list, and may be loaded when it is mended", func(p *scene) {
		p.put("a", repository.Model{Fail: "no weights"})
		p.put("b", repository.Model{})
		p.want("a load", p.loadIn("a", time.Minute), Refused, "no weights")
		p.must("b")
		p.loaded("a", 1)
		p.put("a", repository.Model{})
		p.must("a")
		p.loaded("a", 2)
		p.loaded("b", 1)
		p.look(Record{}, []string{"a", "b"})
	}},
	{"files that are not there hold up all that follows, and say so", func(p *scene) {
		p.put("a", repository.Model{})
		p.put("b", repository.Model{})
		p.must("a")
		p.want("a load", p.loadIn("missing", late), Unclear, "is there a folder with a number for its name in /models/missing?")
		p.want("an unload", p.unloadIn("missing", late), Unclear, "")
		p.want("another load", p.loadIn("b", late), Unclear, "")
		p.look(Record{}, []string{"a"}, "missing")
		p.want("an unload after a look", p.unloadIn("missing", late), Unclear, "")
		p.put("missing", repository.Model{})
		time.Sleep(slowly)
		p.done("an unload", p.unloadIn("missing", time.Minute))
		p.must("b")
		p.look(Record{}, []string{"a", "b"}, "missing")
		p.loaded("a", 1)
	}},
	{"an engine that begins anew gets nothing back that it lost but what is asked for", func(p *scene) {
		p.put("a", repository.Model{})
		p.put("b", repository.Model{})
		p.must("a")
		p.look(Record{}, []string{"a"})
		p.kill()
		p.start()
		p.must("b")
		p.loaded("a", 0)
		if !p.look(Record{}, []string{"b"}, "a").Purged {
			p.Error("it is not seen to have begun anew")
		}
	}},
	{"an engine that was wedged and begins anew is not wedged again", func(p *scene) {
		p.put("b", repository.Model{})
		p.want("a load", p.loadIn("missing", late), Unclear, "")
		p.kill()
		p.start()
		p.must("b")
		p.done("an unload", p.unloadIn("missing", time.Minute))
		p.look(Record{}, []string{"b"}, "missing")
	}},
	{"a model that failed when its caller had left is loaded when it is mended", func(p *scene) {
		p.put("a", repository.Model{Load: slowly, Fail: "no weights"})
		p.want("a load", p.loadIn("a", late), Unclear, "")
		time.Sleep(slowly)
		p.put("a", repository.Model{})
		p.must("a")
		p.loaded("a", 2)
	}},
	{"looks during an unload do not take it for a new life", func(p *scene) {
		p.put("a", repository.Model{Unload: slowly})
		p.must("a")
		p.look(Record{}, []string{"a"})
		var over sync.WaitGroup
		over.Go(func() { p.done("an unload", p.unloadIn("a", time.Minute)) })
		for range 60 {
			time.Sleep(slowly / 30)
			if p.look(Record{}, nil).Purged {
				p.Error("it is taken to have begun anew")
			}
		}
		over.Wait()
	}},
	{"nothing is told to an engine that nobody has looked at", func(p *scene) {
		p.put("a", repository.Model{})
		p.anew()
		p.want("a load", p.loadIn("a", time.Minute), Unreached, "has not looked")
		p.want("an unload", p.unloadIn("a", time.Minute), Unclear, "has not looked")
	}},
}

func (p *scene) serving() *tfServing { return p.loader.driver.(*tfServing) }

// anew replaces the Loader by a new one that recalls some models.
func (p *scene) anew(recalled ...Model) {
	p.Helper()
	_ = p.loader.Close()
	l, err := Open(p.endpoint(), p.access(), nil)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = l.Close() })
	l.Recall(recalled)
	p.loader = l
}

func TestTFServingList(t *testing.T) {
	for _, c := range listScenarios {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimulatedEngine(t, engine.TFServing)
				l, err := Open(s.endpoint(), s.access(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				p := &scene{T: t, repositoryEngine: s, kind: engine.TFServing, loader: l}
				p.look(Record{}, nil)
				c.run(p)
			})
		})
	}
}

// The test fails if a state is misread, or if a reason is lost.
func TestTFServingStages(t *testing.T) {
	version := func(n int64, s tensorflow.ModelVersionStatus_State, words string) *tensorflow.ModelVersionStatus {
		return &tensorflow.ModelVersionStatus{Version: n, State: s, Status: &tensorflow.StatusProto{ErrorMessage: words}}
	}
	const start, loading, available = tensorflow.ModelVersionStatus_START, tensorflow.ModelVersionStatus_LOADING,
		tensorflow.ModelVersionStatus_AVAILABLE
	const unloading, end = tensorflow.ModelVersionStatus_UNLOADING, tensorflow.ModelVersionStatus_END
	for _, c := range []struct {
		name     string
		versions []*tensorflow.ModelVersionStatus
		want     engine.StoredModel
	}{
		{"none", nil, engine.StoredModel{}},
		{"about to load", []*tensorflow.ModelVersionStatus{version(1, start, "")}, engine.StoredModel{Stage: engine.Coming}},
		{"loading", []*tensorflow.ModelVersionStatus{version(1, loading, "")}, engine.StoredModel{Stage: engine.Coming}},
		{"serving", []*tensorflow.ModelVersionStatus{version(1, available, "")}, engine.StoredModel{Stage: engine.Serving}},
		{"leaving", []*tensorflow.ModelVersionStatus{version(1, unloading, "")}, engine.StoredModel{Stage: engine.Leaving}},
		{"unloaded", []*tensorflow.ModelVersionStatus{version(1, end, "")}, engine.StoredModel{}},
		{"failed", []*tensorflow.ModelVersionStatus{version(1, end, "no weights")}, engine.StoredModel{Reason: "no weights"}},
		{"a state of a version to come", []*tensorflow.ModelVersionStatus{version(1, 35, "")}, engine.StoredModel{Stage: engine.Coming}},
		{"no state", []*tensorflow.ModelVersionStatus{version(1, 0, "")}, engine.StoredModel{Stage: engine.Coming}},
		{
			"the next version loads",
			[]*tensorflow.ModelVersionStatus{version(2, loading, ""), version(1, available, "")},
			engine.StoredModel{Stage: engine.Serving},
		},
		{
			"the next version loads, told last",
			[]*tensorflow.ModelVersionStatus{version(1, available, ""), version(2, loading, "")},
			engine.StoredModel{Stage: engine.Serving},
		},
		{"the next version failed", []*tensorflow.ModelVersionStatus{
			version(3, end, "new"), version(2, end, "old"),
			version(1, available, ""),
		}, engine.StoredModel{Stage: engine.Serving, Reason: "new"}},
		{
			"the version before is gone",
			[]*tensorflow.ModelVersionStatus{version(1, end, ""), version(2, loading, "")},
			engine.StoredModel{Stage: engine.Coming},
		},
	} {
		c.want.Name = "m"
		if diff := cmp.Diff(c.want, stageOf("m", c.versions)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// A scrape that began before a call and ends after it must not override the call: a model that was
// unloaded meanwhile stays unloaded, and a model that is being changed stays on the list.
func TestTFServingScrapeDuringACall(t *testing.T) {
	for _, changing := range []bool{false, true} {
		d := &tfServing{looked: true, changing: make(chan struct{}, 1), list: map[string]string{"kept": "/kept"}, had: loadedModels{}}
		if d.ends = 1; changing {
			d.ends, d.changing = 0, make(chan struct{}, 1)
			d.changing <- struct{}{}
		}
		d.note(0, loadedModels{}, map[string]string{"gone": "", "kept": ""},
			map[string]engine.Stage{"gone": engine.Serving, "kept": engine.Stored})
		if len(d.had) > 0 || len(d.list) != 1 || d.restarted {
			t.Errorf("while the list is changed %v: it has %v of %v", changing, d.had, d.list)
		}
	}
}
