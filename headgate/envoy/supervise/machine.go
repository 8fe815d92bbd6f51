// Package supervise decides when a supervisor of Envoys starts, drains and ends them. It is a state
// machine: an event and the time give a list of actions.
package supervise

import (
	"fmt"
	"slices"
	"time"
)

// Limits are the durations that a Machine waits.
type Limits struct {
	// Ready is how long an Envoy may take until it is ready.
	Ready time.Duration
	// Drain is how long an Envoy may take to complete its answers.
	Drain time.Duration
	// Settle is how long a replaced Envoy keeps connections after its last request. A client that
	// uses a connection in this time gets a response that closes it.
	Settle time.Duration
	// Linger is the same time for an Envoy that is stopped, not replaced.
	Linger time.Duration
	// Term is how long an Envoy may take to end after SIGTERM.
	Term time.Duration
	// Backoff is the pause before an Envoy that crashed is started again. It doubles with each
	// crash up to MaxBackoff, and starts anew when an Envoy has served for Stable.
	Backoff, MaxBackoff, Stable time.Duration
}

// maxOld is the number of Envoys that may drain at once. A reload waits while there are more.
const maxOld = 2

// Event is something that happened.
type Event interface{ event() }

type (
	// Start is the first event.
	Start struct{}
	// Reload asks for a new Envoy in place of the current one.
	Reload struct{}
	// Checked answers Check: whether the binary accepts the configuration, and the version of its
	// protocol of hot restarts. It is empty if the binary cannot restart that way.
	Checked struct {
		Version string
		Err     error
	}
	// Ready reports that an Envoy serves.
	Ready struct{ ID int }
	// Load reports how many requests and connections an Envoy has that drains.
	Load struct{ ID, Requests, Connections int }
	// Exited reports that an Envoy has ended, and how.
	Exited struct {
		ID     int
		Status string
	}
	// Stop asks to complete all answers and to end.
	Stop struct{}
	// Hurry asks to end at once.
	Hurry struct{}
	// Tick reports that time has passed.
	Tick struct{}
)

func (Start) event()   {}
func (Reload) event()  {}
func (Checked) event() {}
func (Ready) event()   {}
func (Load) event()    {}
func (Exited) event()  {}
func (Stop) event()    {}
func (Hurry) event()   {}
func (Tick) event()    {}

// Action is something to do.
type Action interface{ action() }

type (
	// Check asks for Checked.
	Check struct{}
	// Launch starts an Envoy. Envoys of one generation share a base id: an epoch above 0 takes the
	// listeners of the epoch before it and drains that one.
	Launch struct{ ID, Generation, Epoch int }
	// Adopt makes an Envoy the current one.
	Adopt struct{ ID int }
	// Watch asks for Load of an Envoy that drains.
	Watch struct{ ID int }
	// Drain makes an Envoy close its listeners for clients, and ask clients to close their
	// connections. After that, the supervisor sends Loads of this Envoy.
	Drain struct{ ID int }
	// Terminate sends SIGTERM.
	Terminate struct{ ID int }
	// Kill sends SIGKILL.
	Kill struct{ ID int }
	// Note logs a message with keys and values.
	Note struct {
		Level Level
		Text  string
		Args  []any
	}
	// End ends the supervisor.
	End struct{ Err error }
)

func (Check) action()     {}
func (Launch) action()    {}
func (Adopt) action()     {}
func (Watch) action()     {}
func (Drain) action()     {}
func (Terminate) action() {}
func (Kill) action()      {}
func (Note) action()      {}
func (End) action()       {}

// Level is the severity of a Note.
type Level int

// The levels.
const (
	Info Level = iota
	Warn
	Error
)

// envoy is a process.
type envoy struct {
	id, generation, epoch int
	version               string
	since                 time.Time // when it was started, became current, began to drain, or got SIGTERM
	requests              int       // of the last Load
	busy                  time.Time // time of the last Load with requests
	ending                bool      // it got SIGTERM or SIGKILL
}

// Machine is the state. Make one with New.
type Machine struct {
	limits Limits

	current  *envoy   // serves
	starting *envoy   // is not ready yet
	old      []*envoy // drain, or end
	checking bool     // Checked is expected
	again    bool     // another Envoy is wanted when the present start is over
	stopping bool
	ready    bool // an Envoy has been ready before

	ids, generations int
	broken           int // the generation in which no hot restart is possible any more; 0 if there is none

	backoff time.Duration
	retry   time.Time // when to start an Envoy again; zero if none is due
}

// New returns a Machine that has not started.
func New(limits Limits) *Machine { return &Machine{limits: limits} }

// Step returns what to do after an event.
func (m *Machine) Step(now time.Time, e Event) []Action {
	switch e := e.(type) {
	case Start:
		return m.check()
	case Reload:
		return m.reload()
	case Checked:
		return m.checked(now, e)
	case Ready:
		return m.adopt(now, e.ID)
	case Load:
		return m.load(now, e)
	case Exited:
		return m.exited(now, e)
	case Stop:
		return m.stop(now)
	case Hurry:
		return m.hurry(now)
	case Tick:
		return m.tick(now)
	}
	return nil
}

// Next returns when the Machine needs a Tick; zero if it needs none.
func (m *Machine) Next() time.Time {
	next := m.retry
	for e := range m.all {
		if at := m.deadline(e); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// all yields each Envoy, the oldest first.
func (m *Machine) all(yield func(*envoy) bool) {
	for _, e := range append(slices.Clone(m.old), m.current, m.starting) {
		if e != nil && !yield(e) {
			return
		}
	}
}

// deadline returns when the patience with an Envoy ends; zero if it serves.
func (m *Machine) deadline(e *envoy) time.Time {
	switch {
	case e.ending:
		return e.since.Add(m.limits.Term)
	case e == m.starting:
		return e.since.Add(m.limits.Ready)
	case e == m.current:
		return time.Time{}
	}
	return e.since.Add(m.limits.Drain)
}

func (m *Machine) check() []Action {
	m.checking, m.retry = true, time.Time{}
	return []Action{Check{}}
}

func (m *Machine) reload() []Action {
	switch {
	case m.stopping:
		return nil
	case m.checking || m.starting != nil:
		m.again = true
		return []Action{note(Info, "a reload is in progress; another one follows it")}
	case len(m.old) >= maxOld:
		m.again = true
		return []Action{note(Warn, "too many Envoys still complete responses; the reload waits until one of them exits", "envoys", len(m.old))}
	}
	return m.check()
}

// next starts the Envoy that a reload during another asked for.
func (m *Machine) next() []Action {
	if !m.again || m.stopping || m.checking || m.starting != nil || len(m.old) >= maxOld {
		return nil
	}
	m.again = false
	return m.check()
}

func (m *Machine) checked(now time.Time, c Checked) []Action {
	m.checking = false
	switch {
	case m.stopping:
		return m.end(nil)
	case c.Err != nil:
		return m.failed(now, c.Err.Error())
	}
	m.ids++
	e := &envoy{id: m.ids, version: c.Version, since: now}
	if m.hot(c.Version) {
		e.generation, e.epoch = m.current.generation, m.current.epoch+1
	} else {
		m.generations++
		e.generation = m.generations
	}
	m.starting = e
	return []Action{Launch{e.id, e.generation, e.epoch}}
}

// hot reports whether the next Envoy can take the listeners of the current one. An Envoy that
// started so itself cannot hand them on: it would first send a message to its parent, and abort if
// the parent has ended.
func (m *Machine) hot(version string) bool {
	return m.current != nil && m.current.epoch == 0 && version != "" && version == m.current.version &&
		m.current.generation != m.broken
}

// failed handles an Envoy that did not become ready.
func (m *Machine) failed(now time.Time, why string) []Action {
	switch {
	case m.current != nil:
		return append([]Action{note(Error, "the new Envoy did not become ready; the current one stays", "envoy", m.current.id, "err", why)}, m.next()...)
	case !m.ready:
		return m.end(fmt.Errorf("envoy did not become ready: %s", why))
	}
	return m.retryLater(now, why)
}

func (m *Machine) retryLater(now time.Time, why string) []Action {
	m.backoff = min(max(2*m.backoff, m.limits.Backoff), m.limits.MaxBackoff)
	m.retry = now.Add(m.backoff)
	return []Action{note(Error, "no Envoy serves; starting another one", "in", m.backoff.String(), "err", why)}
}

func (m *Machine) adopt(now time.Time, id int) []Action {
	e := m.starting
	if e == nil || e.id != id || e.ending {
		return nil
	}
	m.starting, m.ready = nil, true
	before := m.current
	m.current = e
	e.since = now
	actions := []Action{Adopt{id}, note(Info, "Envoy serves", "envoy", id, "generation", e.generation, "epoch", e.epoch)}
	if before != nil {
		before.since, before.busy = now, now
		m.old = append(m.old, before)
		if before.generation == e.generation { // it drains already
			actions = append(actions, Watch{before.id})
		} else {
			actions = append(actions, Drain{before.id})
		}
	}
	return append(actions, m.next()...)
}

// load ends an Envoy that has completed its answers.
func (m *Machine) load(now time.Time, l Load) []Action {
	for _, e := range m.old {
		if e.id != l.ID || e.ending {
			continue
		}
		e.requests = l.Requests
		if l.Requests > 0 {
			e.busy = now
			continue
		}
		settle := m.limits.Settle
		if m.stopping {
			settle = m.limits.Linger
		}
		if l.Connections == 0 || !now.Before(e.busy.Add(settle)) {
			return []Action{m.terminate(now, e), note(Info, "the old Envoy has completed its responses", "envoy", e.id)}
		}
	}
	return nil
}

func (m *Machine) terminate(now time.Time, e *envoy) Action {
	e.ending, e.since = true, now
	return Terminate{e.id}
}

func (m *Machine) exited(now time.Time, x Exited) []Action {
	switch {
	case m.starting != nil && m.starting.id == x.ID:
		e := m.starting
		m.starting = nil
		if e.epoch > 0 {
			m.broken = e.generation // the shared memory still says that one starts
			// The current one may have lost its listeners. An Envoy that starts beside it opens new
			// ones.
			m.again = m.again || m.current != nil
		}
		if m.stopping {
			return m.end(nil)
		}
		return m.failed(now, x.Status)
	case m.current != nil && m.current.id == x.ID:
		e := m.current
		m.current = nil
		if now.Sub(e.since) >= m.limits.Stable {
			m.backoff = 0
		}
		ended := note(Error, "Envoy exited; the next one is already starting", "envoy", x.ID, "err", x.Status)
		switch {
		case m.starting != nil && m.starting.generation == e.generation: // it waits for its parent's listeners for ever
			return []Action{ended, Kill{m.starting.id}}
		case m.starting != nil || m.checking:
			return []Action{ended}
		}
		return m.retryLater(now, fmt.Sprintf("envoy %d exited: %s", x.ID, x.Status))
	}
	m.old = slices.DeleteFunc(m.old, func(e *envoy) bool { return e.id == x.ID })
	if m.stopping {
		return m.end(nil)
	}
	return m.next()
}

// stop drains all Envoys.
func (m *Machine) stop(now time.Time) []Action {
	if m.stopping {
		return nil
	}
	m.stopping, m.again, m.retry = true, false, time.Time{}
	var actions []Action
	if m.starting != nil {
		actions = append(actions, m.terminate(now, m.starting))
	}
	if e := m.current; e != nil {
		e.since, e.busy, m.current = now, now, nil
		m.old = append(m.old, e)
		actions = append(actions, Drain{e.id})
	}
	return append(actions, m.end(nil)...)
}

func (m *Machine) hurry(now time.Time) []Action {
	actions := m.stop(now)
	for e := range m.all {
		if !e.ending {
			actions = append(actions, m.terminate(now, e))
		}
	}
	return actions
}

// end ends the supervisor when no Envoy is left.
func (m *Machine) end(err error) []Action {
	for range m.all {
		return nil
	}
	if m.checking {
		return nil
	}
	return []Action{End{err}}
}

func (m *Machine) tick(now time.Time) []Action {
	var actions []Action
	for e := range m.all {
		if at := m.deadline(e); at.IsZero() || now.Before(at) {
			continue
		}
		switch {
		case e.ending:
			e.since = now
			actions = append(actions, Kill{e.id})
		case e == m.starting:
			actions = append(actions, m.terminate(now, e), note(Error, "Envoy did not become ready in time; stopping it", "envoy", e.id, "after", m.limits.Ready.String()))
		default:
			actions = append(actions, m.terminate(now, e),
				note(Warn, "the drain time is over; stopping Envoy and cutting its requests", "envoy", e.id, "after", m.limits.Drain.String(), "requests", e.requests))
		}
	}
	if !m.retry.IsZero() && !now.Before(m.retry) {
		actions = append(actions, m.check()...)
	}
	return actions
}

func note(l Level, text string, args ...any) Note { return Note{l, text, args} }
