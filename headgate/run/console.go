package run

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/engine"
)

// reading contains the metrics of all programs that answered in one second.
type reading struct {
	at      time.Time
	extproc *extprocReading
	control *controlReading
	engines map[string]engineReading // by the engine's address
	// names contains the names of endpoints by address.
	names map[string]string
}

// extprocReading contains the metrics that extproc exports.
type extprocReading struct {
	at        time.Time
	started   engine.Value // when the process, and thus its counters, started
	endpoints []endpoint   // sorted by address
	tokens    engine.Value // counter: tokens of all responses that report them
	refused   float64      // rejected object files
	held      float64      // waiting requests
}

// endpoint contains extproc's metrics of one endpoint.
type endpoint struct {
	address          string
	state            string // healthy, suspect, stale, lost or out
	running, waiting engine.Value
	requests         engine.Value // counter
}

// controlReading contains control's metrics of models.
type controlReading struct {
	started          engine.Value
	loads, evictions float64 // both are counters
}

// engineReading contains the metrics of one engine.
type engineReading struct {
	at   time.Time
	load engine.Load
	// requests and tokens are counters. They are unknown if the engine does not export them.
	requests, tokens engine.Value
	// slots is the number of adapter slots. used is how many of them contain an adapter.
	used, slots engine.Value
}

// memory contains the last earlier reading of each program that has answered.
type memory struct {
	extproc *extprocReading
	control *controlReading
	engines map[string]engineReading
}

// line formats a reading and its changes since the earlier readings in m. It returns the memory for
// the next line.
func (m memory) line(r reading, controlled bool) (string, memory) {
	next := memory{extproc: cmp.Or(r.extproc, m.extproc), control: cmp.Or(r.control, m.control), engines: make(map[string]engineReading)}
	var known []endpoint
	if next.extproc != nil {
		known = next.extproc.endpoints
	}
	var requests, tokens rate
	var texts strings.Builder
	for _, e := range known {
		was, had := m.engines[e.address]
		now, answers := r.engines[e.address]
		switch {
		case answers:
			next.engines[e.address] = now
		case had:
			next.engines[e.address] = was
		}
		if answers && had {
			requests.add(grown(was.requests, now.requests, was.load.Started, now.load.Started), now.at.Sub(was.at))
			tokens.add(grown(was.tokens, now.tokens, was.load.Started, now.load.Started), now.at.Sub(was.at))
		}
		if _, tells := now.requests.Get(); !tells {
			requests.add(m.served(e, r.extproc))
		}
		fmt.Fprintf(&texts, " | %s %s", cmp.Or(r.names[e.address], e.address), describe(e, now, answers, r.extproc != nil))
	}
	if !tokens.known && r.extproc != nil && m.extproc != nil { // no engine reports tokens
		tokens.add(grown(m.extproc.tokens, r.extproc.tokens, m.extproc.started, r.extproc.started), r.extproc.at.Sub(m.extproc.at))
	}
	switch {
	case r.extproc == nil:
		texts.WriteString(" | extproc does not answer")
	case len(known) == 0:
		texts.WriteString(" | no endpoint yet")
	}
	if r.extproc != nil && r.extproc.refused > 0 {
		fmt.Fprintf(&texts, " | files refused: %.0f", r.extproc.refused)
	}
	placing := ""
	switch {
	case controlled:
		placing = m.placing(r.control, r.extproc)
	case r.extproc != nil && r.extproc.held > 0:
		placing = fmt.Sprintf(" | %3.0f queued", r.extproc.held)
	}
	return fmt.Sprintf("%s %4s req/s %5s tok/s%s%s", r.at.Format("15:04:05"), requests, tokens, placing, texts.String()), next
}

// served returns how many requests an endpoint got since the last reading, and the time since then.
func (m memory) served(e endpoint, now *extprocReading) (requests engine.Value, in time.Duration) {
	if now == nil || m.extproc == nil {
		return engine.Value{}, 0
	}
	at := slices.IndexFunc(m.extproc.endpoints, func(was endpoint) bool { return was.address == e.address })
	if at < 0 {
		return engine.Value{}, 0
	}
	was := m.extproc.endpoints[at].requests
	if _, counted := was.Get(); !counted { // extproc exports no series before the first request
		was = engine.Known(0)
	}
	return grown(was, e.requests, m.extproc.started, now.started), now.at.Sub(m.extproc.at)
}

// placing describes what control has done since the last reading, and how many requests are queued
// in extproc.
func (m memory) placing(now *controlReading, queued *extprocReading) string {
	if now == nil {
		return " | control does not answer"
	}
	var loads, evictions float64
	if was := m.control; was != nil {
		loads = grown(engine.Known(was.loads), engine.Known(now.loads), was.started, now.started).Or(0)
		evictions = grown(engine.Known(was.evictions), engine.Known(now.evictions), was.started, now.started).Or(0)
	}
	held := 0.0
	if queued != nil {
		held = queued.held
	}
	return fmt.Sprintf(" | %3.0f queued %2.0f loads %2.0f evictions", held, loads, evictions)
}

// grown returns the increase of a counter. It is unknown if one of the two values is, or if the
// process has restarted between them: started and startedNow differ.
func grown(was, now, started, startedNow engine.Value) engine.Value {
	before, told := was.Get()
	after, tells := now.Get()
	if !told || !tells || started != startedNow {
		return engine.Value{}
	}
	return engine.Known(after - before) // a negative value becomes unknown: the counter was reset
}

// rate is the sum of the rates that are known.
type rate struct {
	perSecond float64
	known     bool
}

func (r *rate) add(n engine.Value, in time.Duration) {
	if n, ok := n.Get(); ok && in > 0 {
		r.perSecond, r.known = r.perSecond+n/in.Seconds(), true
	}
}

func (r rate) String() string {
	if !r.known {
		return number(engine.Value{})
	}
	return number(engine.Known(r.perSecond))
}

// describe formats an endpoint: its state, and the metrics of its engine or, if the engine does not
// answer, extproc's metrics of it. fresh means that extproc answered this time.
func describe(e endpoint, r engineReading, answers, fresh bool) string {
	heard := fresh && (e.state == "healthy" || e.state == "suspect")
	if !answers && !heard {
		return "no answer"
	}
	if !answers {
		r = engineReading{load: engine.Load{Running: e.running, Waiting: e.waiting}}
	}
	text := fmt.Sprintf("%3s+%-3s %s", number(r.load.Running), number(r.load.Waiting), slotPicture(r.used, r.slots))
	if fresh && e.state != "healthy" {
		text += " " + e.state
	}
	return text
}

func number(v engine.Value) string {
	if n, known := v.Get(); known {
		return fmt.Sprintf("%.0f", n)
	}
	return "-"
}

// maxDots is the largest number of slots that is drawn as dots. A larger number is printed in
// digits.
const maxDots = 8

// slotPicture draws a dot for each slot. The dot is filled if the slot is used.
func slotPicture(used, slots engine.Value) string {
	all, known := slots.Get()
	taken := used.Or(0)
	switch {
	case !known:
		return "-"
	case all > maxDots || taken > all:
		return fmt.Sprintf("%.0f/%.0f", taken, all)
	}
	return strings.Repeat("●", int(taken)) + strings.Repeat("○", int(all-taken))
}
