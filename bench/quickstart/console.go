package quickstart

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/engine"
)

// reading is what the programs of a run said in one second. Who did not answer is not in it.
type reading struct {
	at      time.Time
	extproc *extprocReading
	control *controlReading
	engines map[string]engineReading // by address
	// names are what people call endpoints, by address.
	names map[string]string
}

// extprocReading is what extproc says of the endpoints that it knows.
type extprocReading struct {
	at        time.Time
	started   engine.Value // when the process began: its counters began then
	endpoints []endpoint   // in order of address, each once
	tokens    engine.Value // of answers that state them; only grows
	refused   float64      // files of objects that are not in force
}

// endpoint is what extproc says of one.
type endpoint struct {
	address          string
	state            string // healthy, suspect, stale, lost or out
	running, waiting engine.Value
	requests         engine.Value // only grows
}

// controlReading is what control says of models.
type controlReading struct {
	started          engine.Value
	held             float64 // requests, now
	loads, evictions float64 // only grow
}

// engineReading is what one engine says of itself.
type engineReading struct {
	at   time.Time
	load engine.Load
	// requests and tokens only grow while the engine lives; unknown where it does not tell them.
	requests, tokens engine.Value
	// used is the adapters in slots, of all slots.
	used, slots engine.Value
}

// memory is what lines need of readings before: the last of each program that it answered.
type memory struct {
	extproc *extprocReading
	control *controlReading
	engines map[string]engineReading
}

// line is one second for people: what a reading says, and what has changed since those before. It returns what the next line
// is to know.
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
	if !tokens.known && r.extproc != nil && m.extproc != nil { // engines that tell none
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
	if controlled {
		placing = m.placing(r.control)
	}
	return fmt.Sprintf("%s %4s req/s %5s tok/s%s%s", r.at.Format("15:04:05"), requests, tokens, placing, texts.String()), next
}

// served is how many requests extproc has counted at an endpoint since its reading before, and in which time.
func (m memory) served(e endpoint, now *extprocReading) (requests engine.Value, in time.Duration) {
	if now == nil || m.extproc == nil {
		return engine.Value{}, 0
	}
	at := slices.IndexFunc(m.extproc.endpoints, func(was endpoint) bool { return was.address == e.address })
	if at < 0 {
		return engine.Value{}, 0
	}
	was := m.extproc.endpoints[at].requests
	if _, counted := was.Get(); !counted { // extproc counts from the first request on
		was = engine.Known(0)
	}
	return grown(was, e.requests, m.extproc.started, now.started), now.at.Sub(m.extproc.at)
}

// placing is what control did since it last answered, and how many requests are held for models now.
func (m memory) placing(now *controlReading) string {
	if now == nil {
		return " | control does not answer"
	}
	var loads, evictions float64
	if was := m.control; was != nil {
		loads = grown(engine.Known(was.loads), engine.Known(now.loads), was.started, now.started).Or(0)
		evictions = grown(engine.Known(was.evictions), engine.Known(now.evictions), was.started, now.started).Or(0)
	}
	return fmt.Sprintf(" | %3.0f held %2.0f loads %2.0f evictions", now.held, loads, evictions)
}

// grown is by how much a counter has grown; unknown where it was not told twice by one life of a program, of which started tells
// when it began.
func grown(was, now, started, startedNow engine.Value) engine.Value {
	before, told := was.Get()
	after, tells := now.Get()
	if !told || !tells || started != startedNow {
		return engine.Value{}
	}
	return engine.Known(after - before) // unknown for one that is less: it began anew
}

// rate is a sum of rates, as far as any are known.
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

// describe is an endpoint for people: what its engine says, where that does not answer us what extproc heard, and what extproc
// holds against it. Fresh says that extproc was heard now.
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

// maxDots is how many slots are drawn; more are counted.
const maxDots = 8

// slotPicture draws a dot for each slot, full where it is taken.
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
