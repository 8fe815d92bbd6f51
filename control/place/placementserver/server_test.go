package placementserver_test

import (
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/placementserver"
)

// A stream begins with the complete state, in Updates of limited size. The last of these Updates is
// marked complete. No Update is marked before the first scrapes have ended.
func TestStreamBeginsWithTheCompleteState(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Publish(copies(decide.Loaded, numbered(5000)...))
		w.Publish(decide.Change{
			Failures:   map[decide.Key]decide.Reason{model("bad"): decide.LoadFailed},
			Registered: map[decide.Key]bool{model("new"): true},
			Endpoints:  []string{"e1"},
		})
		early := w.connect("early")
		if early.complete != 0 {
			t.Error("an Update is complete before all is known")
		}
		w.Ready()
		synctest.Wait()
		if early.complete != len(early.updates) {
			t.Errorf("Update %d of %d is complete", early.complete, len(early.updates))
		}
		late := w.connect("late") // early shares limits with late now
		for _, x := range []*extproc{early, late} {
			if len(x.copies) != 5000 || x.failures["bad"] != "load_failed" || len(x.models) != 1 || len(x.endpoints) != 1 {
				t.Errorf("%d copies, %v, %v, %v", len(x.copies), x.failures, x.models, x.endpoints)
			}
			if x == late && x.complete != len(x.updates) {
				t.Errorf("Update %d of %d is complete", x.complete, len(x.updates))
			}
			if len(x.updates) < 3 {
				t.Errorf("all came in %d Updates", len(x.updates))
			}
			for i, u := range x.updates {
				if n := len(u.GetCopies()) + len(u.GetFailures()) + len(u.GetRegistered()); n > 2000 || u.GetVersion() != uint64(i+1) {
					t.Errorf("the Update %d says %d things and is version %d", i, n, u.GetVersion())
				}
			}
		}
		if len(late.updates) != 3 {
			t.Errorf("%d Updates for 5002 things", len(late.updates))
		}
	})
}

// A first Update that is full is not marked complete, since more may follow. The next Update is
// marked, if nothing more follows.
func TestLastUpdateIsMarkedComplete(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Publish(copies(decide.Loaded, numbered(2000)...))
		w.Ready()
		x := w.connect("x")
		if len(x.copies) != 2000 || x.complete != len(x.updates) {
			t.Errorf("%d copies, Update %d of %d is complete", len(x.copies), x.complete, len(x.updates))
		}
		w.Ready() // a second call has no effect
		synctest.Wait()
		if x.complete != len(x.updates) {
			t.Error("it is said twice")
		}
	})
}

func TestOnlyChangesAreSent(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Publish(copies(decide.Loaded, "a", "b"))
		w.Ready()
		x := w.connect("x")
		before := len(x.heard())
		for _, c := range []decide.Change{
			copies(decide.Loading, "c"),
			copies(decide.Queued, "c"),   // for extprocs, queued is the same as loading
			copies(decide.Loaded, "a"),   // no change
			{Copies: gone("z").Copies},   // copy z never existed
			copies(decide.Draining, "b"), // draining and unloading both forbid requests
			copies(decide.Unloading, "b"),
			gone("b"),
			{Failures: map[decide.Key]decide.Reason{model("d"): decide.NoRoom}},
			{Failures: map[decide.Key]decide.Reason{model("d"): decide.NoRoom, model("e"): ""}},
			{Registered: map[decide.Key]bool{model("d"): true}},
			{Endpoints: []string{"e1", "e2"}},
		} {
			w.Publish(c)
			synctest.Wait()
		}
		if got, want := x.state(), "map[a:LOADED c:LOADING] map[d:no_room] [d] [e1 e2]"; got != want {
			t.Errorf("it knows %s, want %s", got, want)
		}
		things := 0
		for _, u := range x.heard()[before:] {
			if things += len(u.GetCopies()) + len(u.GetFailures()) + len(u.GetRegistered()); u.GetComplete() {
				t.Error("complete is said again")
			}
		}
		if things != 5 { // c once, b twice, d twice
			t.Errorf("%d things were said of 5 that changed:\n%v", things, x.heard()[before:])
		}
		w.Publish(decide.Change{
			Failures: map[decide.Key]decide.Reason{model("d"): ""}, Registered: map[decide.Key]bool{model("d"): false},
			Endpoints: []string{},
		})
		synctest.Wait()
		if got, want := x.state(), "map[a:LOADED c:LOADING] map[] [] []"; got != want {
			t.Errorf("it knows %s, want %s", got, want)
		}
	})
}

// A new stream begins with the complete state, including what changed since the last stream. Its
// versions start at 1 again.
func TestReconnectedExtprocGetsTheCompleteState(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Publish(copies(decide.Loaded, "a", "b"))
		w.Ready()
		x := w.connect("x")
		x.leave()
		w.Publish(gone("b"))
		w.Publish(copies(decide.Loading, "c"))
		x = w.connect("x")
		if got, want := x.state(), "map[a:LOADED c:LOADING] map[] [] []"; got != want || x.complete != 1 {
			t.Errorf("it knows %s, want %s; Update %d is complete", got, want, x.complete)
		}
	})
}

func TestSlowReaderDelaysNoOther(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		slow := w.connectWithoutReading("slow")
		x := w.connect("x")
		for range 20 { // some megabytes, more than all buffers hold
			w.Publish(copies(decide.Loading, numbered(5000)...))
			synctest.Wait()
			w.Publish(gone(numbered(5000)...))
			synctest.Wait()
		}
		w.Publish(copies(decide.Loaded, "a"))
		synctest.Wait()
		if got, want := x.state(), "map[a:LOADED] map[] [] []"; got != want {
			t.Errorf("the other knows %s, want %s", got, want)
		}
		// The slow extproc reaches the same state once it reads, and does not receive changes that
		// were undone meanwhile.
		for i := 0; slow.copies["a"] != placement.Copy_LOADED; i++ {
			u, err := slow.stream.Recv()
			if err != nil || i > 60 {
				t.Fatalf("after %d Updates: %v", i, err)
			}
			slow.apply(u)
			synctest.Wait()
		}
		if n, all := len(slow.heard()), len(x.heard()); n >= all/2 {
			t.Errorf("the slow one got %d Updates, the other %d", n, all)
		}
	})
}

func TestRequestsInFlightOfOthersAreSent(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x, y, z := w.connect("x"), w.connect("y"), w.connect("z")
		x.reportInFlight(map[string]uint32{"a": 3, "b": 1})
		y.reportInFlight(map[string]uint32{"a": 2})
		if w.placer.inFlight["a"] != 5 || w.placer.inFlight["b"] != 1 {
			t.Errorf("placement knows of %v", w.placer.inFlight)
		}
		w.after(time.Second)
		for x, want := range map[*extproc][2]uint32{x: {2, 0}, y: {3, 1}, z: {5, 1}} {
			if got := [2]uint32{x.others["a"], x.others["b"]}; got != want {
				t.Errorf("one is told %v, want %v", got, want)
			}
		}
		before := len(z.heard())
		w.after(5 * time.Second)
		if now := len(z.heard()); now != before {
			t.Errorf("%d Updates though nothing changed", now-before)
		}
		x.leave()
		y.reportInFlight(map[string]uint32{"a": 0})
		w.after(time.Second)
		if z.others["a"] != 0 || z.others["b"] != 0 || w.placer.inFlight["a"] != 0 || w.placer.inFlight["b"] != 0 {
			t.Errorf("one left and the other's ended: %v, placement knows of %v", z.others, w.placer.inFlight)
		}
	})
}

func wants(id string, requests uint32, waited time.Duration, unusable ...string) *placement.Report {
	return &placement.Report{Wanted: []*placement.Wanted{{
		Key: wireModel(id), Requests: requests, WaitedMs: uint64(waited.Milliseconds()),
		Unusable: unusable,
	}}}
}

func TestWantedModelsEndWithTheirStream(t *testing.T) {
	inMemory(t, func(w *world) {
		x, y := w.connect("one"), w.connect("one") // two streams of one process
		x.send(wants("a", 2, 3*time.Second, "e7"))
		y.send(wants("a", 5, 0))
		y.send(wants("b", 1, 0))
		if got := w.placer.waiting(); len(w.placer.wants) != 2 || got["a"] != 7 || got["b"] != 1 {
			t.Errorf("%v", w.placer.wants)
		}
		for _, of := range w.placer.wants {
			if a := of["a"]; a.Requests == 2 && (time.Since(a.Since) != 3*time.Second || len(a.Unusable) != 1) {
				t.Errorf("%+v", a)
			}
		}
		x.leave()
		if got := w.placer.waiting(); got["a"] != 5 || got["b"] != 1 {
			t.Errorf("after one stream's end: %v", got)
		}
		y.send(wants("a", 0, 0))
		y.leave()
		if len(w.placer.wants) != 0 {
			t.Errorf("after both streams' end: %v", w.placer.wants)
		}
	})
}

// slow is a Placer that is slow to accept wanted models.
type slow struct {
	placementserver.Placer
	wanted, proceed chan struct{}
	said            chan string
}

func (p *slow) Wanted(string, decide.Key, decide.Want) {
	close(p.wanted)
	<-p.proceed
	p.said <- "wanted"
}
func (p *slow) Unwanted(string)                 { p.said <- "unwanted" }
func (p *slow) InFlight(map[decide.CopyKey]int) {}
func (p *slow) Observed(string, map[string]conditions.Endpoint, *conditions.Extproc) {
}

// ended is a stream that sends one Report, and ends when control stops.
type ended struct {
	placement.Placement_ConnectServer
	first chan *placement.Report
}

func (e *ended) Recv() (*placement.Report, error) { return <-e.first, nil }
func (e *ended) Send(*placement.Update) error     { return nil }

// A Report that is being recorded when its stream ends leaves nothing behind.
func TestLateReportLeavesNothing(t *testing.T) {
	p := &slow{wanted: make(chan struct{}), proceed: make(chan struct{}), said: make(chan string, 2)}
	s := placementserver.New(slog.New(slog.DiscardHandler))
	s.SetPlacer(p)
	e := &ended{first: make(chan *placement.Report, 1)}
	first := wants("a", 1, 0)
	first.Process = "x"
	e.first <- first
	over := make(chan struct{})
	go func() {
		_ = s.Connect(e) // its error is tested elsewhere
		close(over)
	}()
	<-p.wanted
	s.Close()
	select {
	case <-over:
	case <-time.After(50 * time.Millisecond): // Connect waits for the Report, as it should
	}
	close(p.proceed)
	if a, b := <-p.said, <-p.said; a != "wanted" || b != "unwanted" {
		t.Errorf("placement heard %s, then %s", a, b)
	}
}

func TestUsesAndMissingCopiesArePassedOn(t *testing.T) {
	inMemory(t, func(w *world) {
		x := w.connect("x")
		x.send(&placement.Report{
			Usage:   []*placement.Usage{{Key: wireModel("a"), Requests: 4, IdleMs: 250, WaitedMs: 1500}},
			Missing: []*placement.CopyKey{wireCopy("b")},
		})
		if w.placer.used["a"] != 250*time.Millisecond || w.placer.requests["a"] != 4 || w.placer.waited != 1500*time.Millisecond ||
			len(w.placer.missing) != 1 || w.placer.missing[0] != "b" {
			t.Errorf("used %v, waited %v, missing %v", w.placer.used, w.placer.waited, w.placer.missing)
		}
	})
}

func TestUnnamedProcessIsRejected(t *testing.T) {
	inMemory(t, func(w *world) {
		x := w.connect("")
		if status.Code(x.err) != codes.InvalidArgument || w.Peers() != 0 {
			t.Errorf("%v, %d follow", x.err, w.Peers())
		}
	})
}

// A preStop hook returns when every extproc has acknowledged the latest state of the endpoint, or
// has been disconnected for a long time.
func TestStillSending(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		w.after(3 * time.Second) // no extproc of an earlier control reconnects
		x, y := w.connect("x"), w.connect("y")
		at := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := w.StillSending([]string{"e1", "e9"}); !slices.Equal(got, want) {
				t.Errorf("%s %q may send still, want %q", when, got, want)
			}
		}
		ack := func(x *extproc) { x.acknowledge(nil) }
		at("at first")
		w.Publish(decide.Change{Leaving: map[string]decide.Leaving{"e1": {Terminating: true, Migrates: time.Now().Add(time.Minute)}}})
		at("while it migrates", "x", "y")
		ack(x)
		ack(y)
		w.Publish(decide.Change{Leaving: map[string]decide.Leaving{"e1": {Terminating: true}}})
		at("when it is told", "x", "y")
		ack(x)
		at("when one has said so", "y")
		y.leave()
		at("when the other is cut off", "y")
		w.after(3 * time.Second)
		at("and stays away")
	})
	inMemory(t, func(w *world) {
		w.Ready()
		w.after(3 * time.Second)
		w.connectWithoutReading("slow")
		many := make([]string, 20_000)
		for i := range many {
			many[i] = "m" + strconv.Itoa(i)
		}
		w.Publish(copies(decide.Loaded, many...)) // more than the buffers hold while it does not read
		w.Publish(decide.Change{Leaving: map[string]decide.Leaving{"e1": {Terminating: true}}})
		synctest.Wait()
		if got := w.StillSending([]string{"e1"}); !slices.Equal(got, []string{"slow"}) {
			t.Errorf("where somebody has not been told yet %q may send still", got)
		}
	})
	inMemory(t, func(w *world) {
		if got := w.StillSending(nil); !slices.Equal(got, []string{""}) {
			t.Errorf("at the start %q may send still", got)
		}
	})
}

// If an extproc learns from an engine or a pod that an endpoint is about to end, it reports this to
// placement. What placement then publishes goes to every extproc, including those that join later.
// Times are sent as durations, since clocks differ.
func TestLeavingEndpointsAreExchanged(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x := w.connect("x")
		x.send(&placement.Report{Leaving: []*placement.Leaving{
			{Endpoint: "e1", StoppingMs: new(uint64(1500))},
			{Endpoint: "e2", Terminating: true, MigratesMs: new(uint64(9000))},
			{Endpoint: "e3"},
		}})
		now := time.Now()
		want := map[string]decide.Leaving{
			"e1": {Stopping: now.Add(-1500 * time.Millisecond)},
			"e2": {Terminating: true, Migrates: now.Add(9 * time.Second)}, "e3": {},
		}
		if !maps.Equal(w.placer.leaving, want) {
			t.Errorf("placement is told %v, want %v", w.placer.leaving, want)
		}
		w.Publish(decide.Change{Leaving: want})
		w.after(time.Second)
		y := w.connect("y")
		for _, c := range []struct {
			who *extproc
			ms  uint64
		}{{x, 1500}, {y, 2500}} {
			e1, e2 := c.who.leaving["e1"], c.who.leaving["e2"]
			if e1.StoppingMs == nil || e1.GetStoppingMs() != c.ms || e1.GetTerminating() || e2.StoppingMs != nil || !e2.GetTerminating() ||
				e2.GetMigratesMs() != 10500-c.ms {
				t.Errorf("it is told %v and %v, want stopping since %d ms, and terminating and migrating for what is left of 9 s", e1,
					e2, c.ms)
			}
		}
		w.Publish(decide.Change{Leaving: map[string]decide.Leaving{"e1": {}}})
		synctest.Wait()
		late := w.connect("late")
		if l := x.leaving["e1"]; l.StoppingMs != nil || l.GetTerminating() {
			t.Errorf("of one that stays it is told %v", l)
		}
		if late.leaving["e1"] != nil || late.leaving["e2"] == nil {
			t.Errorf("who comes later is told %v", late.leaving)
		}
	})
}
