package supervise_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/headgate/envoy/supervise"
)

var limits = supervise.Limits{
	Ready: time.Minute, Drain: 10 * time.Minute, Settle: time.Minute, Linger: 5 * time.Second, Term: 5 * time.Second,
	Backoff: time.Second, MaxBackoff: 4 * time.Second, Stable: time.Minute,
}

// step is an event, and what must be done for it. Notes are left out.
type step struct {
	after time.Duration // since the step before
	event supervise.Event
	want  string
}

func say(actions []supervise.Action) string {
	var all []string
	for _, a := range actions {
		if _, ok := a.(supervise.Note); !ok {
			all = append(all, strings.TrimPrefix(fmt.Sprintf("%T%v", a, a), "supervise."))
		}
	}
	return strings.Join(all, " ")
}

var (
	errBroken = errors.New("broken")

	same   = supervise.Checked{Version: "11.1"}
	other  = supervise.Checked{Version: "11.2"}
	reload = supervise.Reload{}
	tick   = supervise.Tick{}
	stop   = supervise.Stop{}
)

func ready(id int) supervise.Ready { return supervise.Ready{ID: id} }

func exited(id int) supervise.Exited { return supervise.Exited{ID: id, Status: "exit status 1"} }

func busy(id int) supervise.Load { return supervise.Load{ID: id, Requests: 3, Connections: 4} }

func quiet(id int) supervise.Load { return supervise.Load{ID: id, Connections: 2} }

func empty(id int) supervise.Load { return supervise.Load{ID: id} }

// serves is the beginning of most histories.
var serves = []step{
	{0, supervise.Start{}, "Check{}"},
	{0, same, "Launch{1 1 0}"},
	{0, ready(1), "Adopt{1}"},
}

func TestMachine(t *testing.T) {
	for name, steps := range map[string][]step{
		"a hot restart: the old Envoy drains by itself, and ends with its last answer": {
			{0, reload, "Check{}"},
			{0, same, "Launch{2 1 1}"},
			{0, ready(2), "Adopt{2} Watch{1}"},
			{time.Minute, busy(1), ""},
			{time.Minute, empty(1), "Terminate{1}"},
			{0, empty(1), ""},
			{0, exited(1), ""},
			{0, reload, "Check{}"},
			{0, same, "Launch{3 2 0}"}, // Envoy 2 would abort, since its parent has ended
			{0, ready(3), "Adopt{3} Drain{2}"},
			{0, exited(2), ""},
			{0, reload, "Check{}"},
			{0, same, "Launch{4 2 1}"},
		},
		"another version: the new Envoy starts beside the old one, which is then drained": {
			{0, reload, "Check{}"},
			{0, other, "Launch{2 2 0}"},
			{0, ready(2), "Adopt{2} Drain{1}"},
			{0, empty(1), "Terminate{1}"},
			{0, exited(1), ""},
			{0, reload, "Check{}"},
			{0, other, "Launch{3 2 1}"},
			{0, ready(3), "Adopt{3} Watch{2}"},
		},
		"an Envoy without hot restarts is replaced in the other way": {
			{0, reload, "Check{}"},
			{0, supervise.Checked{}, "Launch{2 2 0}"},
			{0, ready(2), "Adopt{2} Drain{1}"},
			{0, exited(1), ""},
			{0, reload, "Check{}"},
			{0, supervise.Checked{}, "Launch{3 3 0}"},
		},
		"connections without requests are kept until their clients can know": {
			{0, reload, "Check{}"},
			{0, other, "Launch{2 2 0}"},
			{0, ready(2), "Adopt{2} Drain{1}"},
			{2 * time.Minute, busy(1), ""}, // a stream, whose connection is idle afterwards
			{59 * time.Second, quiet(1), ""},
			{time.Second, quiet(1), "Terminate{1}"},
		},
		"connections that were idle from the beginning": {
			{0, reload, "Check{}"},
			{0, same, "Launch{2 1 1}"},
			{0, ready(2), "Adopt{2} Watch{1}"},
			{59 * time.Second, quiet(1), ""},
			{time.Second, quiet(1), "Terminate{1}"},
		},
		"an Envoy that is stopped keeps connections without requests for a shorter time": {
			{time.Hour, stop, "Drain{1}"},
			{time.Second, busy(1), ""},
			{4 * time.Second, quiet(1), ""},
			{time.Second, quiet(1), "Terminate{1}"},
			{0, exited(1), "End{<nil>}"},
		},
		"an Envoy that is stopped keeps connections that were idle from the beginning, too": {
			{time.Hour, stop, "Drain{1}"},
			{4 * time.Second, quiet(1), ""},
			{time.Second, quiet(1), "Terminate{1}"},
		},
		"the drain time limits how long the old Envoy answers": {
			{0, reload, "Check{}"},
			{0, same, "Launch{2 1 1}"},
			{0, ready(2), "Adopt{2} Watch{1}"},
			{10*time.Minute - 1, tick, ""},
			{1, tick, "Terminate{1}"},
			{4 * time.Second, tick, ""},
			{time.Second, tick, "Kill{1}"},
			{0, exited(1), ""},
		},
		"a configuration or binary that fails the check changes nothing": {
			{0, reload, "Check{}"},
			{0, supervise.Checked{Err: errBroken}, ""},
			{0, reload, "Check{}"},
			{0, same, "Launch{2 1 1}"},
		},
		"after a failed hot restart, which may have closed the current one's listeners, another Envoy starts beside it": {
			{0, reload, "Check{}"},
			{0, same, "Launch{2 1 1}"},
			{0, exited(2), "Check{}"},
			{0, ready(2), ""},
			{0, same, "Launch{3 2 0}"},
			{0, ready(3), "Adopt{3} Drain{1}"},
			{0, exited(1), ""},
			{0, reload, "Check{}"},
			{0, same, "Launch{4 2 1}"},
		},
		"an Envoy that is not ready in time is ended": {
			{0, reload, "Check{}"},
			{0, other, "Launch{2 2 0}"},
			{time.Minute, tick, "Terminate{2}"},
			{0, ready(2), ""},
			{5 * time.Second, tick, "Kill{2}"},
			{0, exited(2), ""},
			{time.Hour, tick, ""},
		},
		"reloads during a reload are done afterwards, once": {
			{0, reload, "Check{}"},
			{0, reload, ""},
			{0, same, "Launch{2 1 1}"},
			{0, reload, ""},
			{0, ready(2), "Adopt{2} Watch{1} Check{}"},
			{0, same, "Launch{3 2 0}"}, // it took over itself by a hot restart
			{0, ready(3), "Adopt{3} Drain{2}"},
			{0, reload, ""}, // two drain
			{0, reload, ""},
			{0, exited(1), "Check{}"},
			{0, same, "Launch{4 2 1}"},
			{0, ready(4), "Adopt{4} Watch{3}"},
			{0, exited(2), ""},
		},
		"a reload after one that failed": {
			{0, reload, "Check{}"},
			{0, reload, ""},
			{0, supervise.Checked{Err: errBroken}, "Check{}"},
			{0, other, "Launch{2 2 0}"},
			{0, reload, ""},
			{0, exited(2), "Check{}"},
		},
		"an Envoy that crashes is started again, ever later": {
			{0, exited(1), ""},
			{999 * time.Millisecond, tick, ""},
			{time.Millisecond, tick, "Check{}"},
			{0, same, "Launch{2 2 0}"},
			{0, ready(2), "Adopt{2}"},
			{0, exited(2), ""},
			{time.Second, tick, ""},
			{time.Second, tick, "Check{}"},
			{0, supervise.Checked{Err: errBroken}, ""},
			{4 * time.Second, tick, "Check{}"},
			{0, same, "Launch{3 3 0}"},
			{0, exited(3), ""},
			{4 * time.Second, tick, "Check{}"},
			{0, same, "Launch{4 4 0}"},
			{0, ready(4), "Adopt{4}"},
			{time.Minute, exited(4), ""},
			{time.Second, tick, "Check{}"}, // it had served for a while
		},
		"a reload need not wait for the next start": {
			{0, exited(1), ""},
			{0, reload, "Check{}"},
			{time.Hour, tick, ""},
			{0, same, "Launch{2 2 0}"},
		},
		"the current Envoy crashes while the next one starts": {
			{0, reload, "Check{}"},
			{0, other, "Launch{2 2 0}"},
			{0, exited(1), ""},
			{0, ready(2), "Adopt{2}"},
		},
		"the current Envoy crashes while the next one waits for its listeners": {
			{0, reload, "Check{}"},
			{0, same, "Launch{2 1 1}"},
			{0, exited(1), "Kill{2}"},
			{0, exited(2), ""},
			{time.Second, tick, "Check{}"},
			{0, same, "Launch{3 2 0}"},
		},
		"it crashes, and so does the next one": {
			{0, reload, "Check{}"},
			{0, exited(1), ""},
			{0, same, "Launch{2 2 0}"},
			{0, exited(2), ""},
			{time.Second, tick, "Check{}"},
		},
		"stop completes the answers": {
			{0, stop, "Drain{1}"},
			{0, stop, ""},
			{0, reload, ""},
			{0, busy(1), ""},
			{time.Second, empty(1), "Terminate{1}"},
			{0, exited(1), "End{<nil>}"},
		},
		"stop ends at the latest after the drain time": {
			{0, stop, "Drain{1}"},
			{10 * time.Minute, tick, "Terminate{1}"},
			{0, exited(1), "End{<nil>}"},
		},
		"a second signal ends at once": {
			{0, stop, "Drain{1}"},
			{0, supervise.Hurry{}, "Terminate{1}"},
			{0, exited(1), "End{<nil>}"},
		},
		"stop during a start": {
			{0, reload, "Check{}"},
			{0, same, "Launch{2 1 1}"},
			{0, stop, "Terminate{2} Drain{1}"},
			{0, ready(2), ""},
			{0, exited(2), ""},
			{0, exited(1), "End{<nil>}"},
		},
		"stop during a check": {
			{0, reload, "Check{}"},
			{0, stop, "Drain{1}"},
			{0, exited(1), ""},
			{0, same, "End{<nil>}"},
		},
		"stop after a crash": {
			{0, exited(1), ""},
			{0, stop, "End{<nil>}"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, slices.Concat(serves, steps))
		})
	}
	for name, steps := range map[string][]step{
		"the first Envoy fails the check": {
			{0, supervise.Start{}, "Check{}"},
			{0, supervise.Checked{Err: errBroken}, "End{envoy did not become ready: broken}"},
		},
		"the first Envoy ends before it is ready": {
			{0, supervise.Start{}, "Check{}"},
			{0, same, "Launch{1 1 0}"},
			{0, exited(1), "End{envoy did not become ready: exit status 1}"},
		},
		"stop before the first Envoy is ready": {
			{0, supervise.Start{}, "Check{}"},
			{0, same, "Launch{1 1 0}"},
			{0, stop, "Terminate{1}"},
			{0, exited(1), "End{<nil>}"},
		},
	} {
		t.Run(name, func(t *testing.T) { run(t, steps) })
	}
}

func run(t *testing.T, steps []step) {
	t.Helper()
	m := supervise.New(limits)
	now := time.Unix(1000, 0)
	for i, s := range steps {
		now = now.Add(s.after)
		if _, ok := s.event.(supervise.Tick); ok && s.want != "" && m.Next().After(now) {
			t.Errorf("step %d: no tick is asked for before %v", i, m.Next().Sub(now))
		}
		if diff := cmp.Diff(s.want, say(m.Step(now, s.event))); diff != "" {
			t.Fatalf("step %d, %T (-want +got):\n%s", i, s.event, diff)
		}
	}
}
