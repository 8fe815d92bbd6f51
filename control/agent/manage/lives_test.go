package manage

import (
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/simulated/runtime"
)

// The engine, the agent, or both restart. Control learns of a restart of the engine, and of nothing
// else, and models are purged once in each life of the engine.
func TestLives(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		for _, c := range []struct {
			name          string
			agent, engine bool // which of them restart
			unseen        bool // nobody looks while they are down
		}{
			{"the agent alone", true, false, false},
			{"the engine alone", false, true, false},
			{"the engine alone, unseen", false, true, true},
			{"both", true, true, false},
			{"both, unseen", true, true, true},
			{"neither", false, false, false},
		} {
			t.Run(network+"/"+c.name, func(t *testing.T) {
				engine := newRuntime(t, network, runtime.Config{})
				storage := newStorage()
				agent := newAgent(t, Config{Storage: storage, StateFile: filepath.Join(t.TempDir(), "state")},
					func() Engine { return runtimeAt(t, engine.address) })
				control := newControl(t, agent.address)
				control.look("the first look", true)
				control.mustLoad("a", "fetch:size=10")
				control.mustLoad("b", "sim:?size=20")
				for range 2 {
					control.look("a look at the same life", false)
				}
				if c.engine {
					engine.stop()
				}
				if !c.unseen && c.engine {
					if _, err := control.loader.Scrape(t.Context(), control.record); err == nil {
						t.Error("a look at an agent without an engine succeeds")
					}
				}
				if c.agent {
					agent.stop()
					agent.start(t)
				}
				if c.engine {
					engine.start(t)
				}
				control.look("the look after the restart", c.engine)
				want := []string{"a", "b"}
				if c.engine {
					want = nil
				}
				if got := engine.Models(); !slices.Equal(got, want) || engine.Purges() != 1 {
					t.Errorf("the engine has %q after %d purges, want %q after one", got, engine.Purges(), want)
				}
				if got := storage.Models(); c.engine && len(got) > 0 || !c.engine && !slices.Equal(got, []string{"a"}) {
					t.Errorf("the files of %q are there", got)
				}
				control.mustLoad("a", "fetch:size=10")
				for _, id := range []string{"a", "b"} {
					if err := control.loader.Unload(t.Context(), id); err != nil {
						t.Errorf("an unload of %s: %v", id, err)
					}
				}
				if engine.Used() != 0 || len(storage.Models()) > 0 {
					t.Errorf("%d bytes and the files of %q are left", engine.Used(), storage.Models())
				}
				empty(t, agent)
			})
		}
	}
}

// empty ends an agent without models, and checks that it has kept nothing.
func empty(t *testing.T, s *agentProcess) {
	t.Helper()
	s.stop() // calls have ended now
	if n := len(s.turns.all) + len(s.current().models); n > 0 {
		t.Errorf("%d entries of models are left", n)
	}
}

// Control has lost its record of the agent, which has models. The agent makes the engine ready
// again, since control counts no model.
func TestControlWithoutARecordPurges(t *testing.T) {
	engine := newRuntime(t, "unix", runtime.Config{})
	storage := newStorage()
	agent := newAgent(t, Config{Storage: storage}, func() Engine { return runtimeAt(t, engine.address) })
	first := newControl(t, agent.address)
	first.look("the first look", true)
	newControl(t, agent.address).look("a look of a control without a record, before a load", true)
	if engine.Purges() != 1 {
		t.Errorf("%d purges of an engine without models, want 1", engine.Purges())
	}
	first.mustLoad("a", "fetch:size=10")
	newControl(t, agent.address).look("a look of a control without a record", true)
	if engine.Purges() != 2 || engine.Used() != 0 || len(storage.Models()) > 0 {
		t.Errorf("after %d purges, %d bytes and the files of %q are there", engine.Purges(), engine.Used(), storage.Models())
	}
	first.look("a look with a record of the same life", false)
	first.mustLoad("a", "fetch:size=10")
}

// A load in a life that is not made ready is not tried: control looks first.
func TestNoLoadBeforeThePurge(t *testing.T) {
	engine := newRuntime(t, "tcp", runtime.Config{})
	storage := newStorage()
	agent := newAgent(t, Config{Storage: storage}, func() Engine { return runtimeAt(t, engine.address) })
	client := calls(t, agent.address)
	try := func(want codes.Code) {
		t.Helper()
		if _, err := load("a", "fetch:size=10")(client); status.Code(err) != want {
			t.Errorf("a load: %v, want %v", err, want)
		}
	}
	try(codes.Unavailable)
	if storage.fetches != 0 || engine.Used() != 0 {
		t.Error("the load was tried")
	}
	if _, err := client.RuntimeStatus(t.Context(), &mmesh.RuntimeStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	try(codes.OK)
	engine.stop()
	try(codes.Unavailable)
	if s, err := client.RuntimeStatus(t.Context(), &mmesh.RuntimeStatusRequest{}); err != nil ||
		s.GetStatus() != mmesh.RuntimeStatusResponse_STARTING {
		t.Errorf("without an engine, runtimeStatus answers %v, %v", s, err)
	}
	engine.start(t)
	try(codes.Unavailable)
	if len(storage.Models()) != 1 {
		t.Errorf("the files of %q are there before the purge", storage.Models())
	}
}
