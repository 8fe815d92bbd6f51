package estimate

import (
	"fmt"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/sim"
)

// llm is an LLM engine of a stage.
type llm struct {
	*sim.Engine
	stage    *stage
	number   int
	inFlight map[sim.ID]flight
	began    float64 // start of the busy period
	due      float64 // time of the next timer
	onTimer  func()
}

// flight is a query at an engine.
type flight struct {
	query   int32
	arrived float64 // at the stage
	claim   pick.Claim
}

// addEngines creates the engines of a stage. With unbounded replicas they are created on demand.
func (s *stage) addEngines() {
	engine := *s.Engine
	engine.Limits.MaxSequences = s.Batch
	s.Engine = &engine
	if s.Replicas == Unbounded {
		return
	}
	s.picker = newPicker(s.Replicas, s.Engine)
	for range s.Replicas {
		s.newEngine()
	}
}

func (s *stage) newEngine() *llm {
	e, err := sim.New(*s.Engine, nil)
	if err != nil {
		panic(fmt.Sprintf("stage %d: %v", s.number, err)) // Run has checked it
	}
	l := &llm{Engine: e, stage: s, number: len(s.llms), inFlight: make(map[sim.ID]flight), due: -1}
	l.onTimer = l.advance
	s.llms = append(s.llms, l)
	return l
}

// enterEngine sends a query to an engine. It reaches the queue of the engine after the frontend
// overhead.
func (s *stage) enterEngine(q int32) {
	is, now := &s.run.queries[q], s.run.loop.Now()
	f := flight{query: q, arrived: now}
	var l *llm
	switch n := len(s.idle); {
	case s.picker != nil:
		var to int
		to, f.claim = s.picker.pickEngine(s.random(q), int(is.Prompt), s.outputMean.output(), now)
		l = s.llms[to]
	case n > 0:
		l, s.idle = s.idle[n-1], s.idle[:n-1]
	default:
		l = s.newEngine()
	}
	if frontendOverhead := s.Engine.FrontendOverhead; frontendOverhead > 0 {
		s.run.loop.At(now+frontendOverhead, func() { l.submit(f) })
		return
	}
	l.submit(f)
}

// submit puts a query into the queue of the engine.
func (l *llm) submit(f flight) {
	now, q := l.stage.run.loop.Now(), &l.stage.run.queries[f.query]
	if len(l.inFlight) == 0 {
		l.began = now
	}
	l.Skip(now)
	id, err := l.Submit(now, sim.Request{PromptTokens: int(q.Prompt), OutputTokens: int(q.Output)})
	if err != nil {
		panic(fmt.Sprintf("stage %d: %v", l.stage.number, err)) // Run has checked it
	}
	l.inFlight[id] = f
	l.wake()
}

// wake sets a timer for the next event of the engine.
func (l *llm) wake() {
	at, ok := l.NextEvent()
	if !ok || at == l.due {
		return
	}
	l.due = at
	l.stage.run.loop.At(at, l.onTimer)
}

// advance processes the due events of the engine. It ignores timers that were replaced by an
// earlier one.
func (l *llm) advance() {
	now := l.stage.run.loop.Now()
	if now != l.due {
		return
	}
	l.due = -1
	l.Skip(now)
	for _, ev := range l.Advance(now) {
		if ev.Kind == sim.Finished {
			f := l.inFlight[ev.ID]
			delete(l.inFlight, ev.ID)
			l.ended(f, &ev.Record, now)
		}
	}
	l.wake()
}

// ended moves a query on after its last token.
func (l *llm) ended(f flight, is *sim.Record, now float64) {
	s := l.stage
	q := &s.run.queries[f.query]
	q.times.FirstToken = is.FirstToken - q.At
	q.times.PerToken = (is.LastToken - is.FirstToken) / float64(max(1, q.Output-1))
	s.result.Queries++
	s.result.Tokens += int(q.Output)
	s.result.QueueTime += is.Scheduled - is.Arrived
	s.result.ServiceTime += now - f.arrived - (is.Scheduled - is.Arrived)
	s.result.Latency.Add(now - f.arrived)
	s.result.FirstToken.Add(is.FirstToken - f.arrived)
	if len(l.inFlight) == 0 {
		s.result.Busy += now - l.began
	}
	s.outputMean.add(float64(q.Output))
	if s.picker != nil {
		if s.picker.ended(l.number, f.claim) {
			s.pods.left()
		}
	} else {
		s.idle = append(s.idle, l)
	}
	s.run.goOn(f.query, s.number)
}

// outputMean is the running mean of output tokens: what extproc expects of the next request.
type outputMean struct{ sum, count float64 }

// defaultOutput is the assumed number of output tokens before the first query ends.
const defaultOutput = 100

func (h *outputMean) add(tokens float64) {
	h.sum += tokens
	h.count++
}

func (h *outputMean) output() int {
	if h.count == 0 {
		return defaultOutput
	}
	return int(h.sum / h.count)
}
