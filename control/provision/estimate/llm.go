package estimate

import (
	"fmt"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/sim"
)

// llm is an LLM engine, which is one replica of a stage.
type llm struct {
	*sim.Engine
	stage    *stage
	number   int
	inFlight map[sim.ID]flight
	began    float64 // when the engine became busy
	due      float64 // when its next timer fires
	onTimer  func()
}

// flight is a query that an LLM engine has not finished yet.
type flight struct {
	query   int32
	arrived float64 // arrival time at the stage
	claim   pick.Claim
}

// addEngines creates the initial engines of a stage. With unbounded replicas, engines are created
// on demand instead.
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
		panic(fmt.Sprintf("stage %d: %v", s.number, err)) // impossible: Run has checked the setting
	}
	l := &llm{Engine: e, stage: s, number: len(s.llms), inFlight: make(map[sim.ID]flight), due: -1}
	l.onTimer = l.advance
	s.llms = append(s.llms, l)
	return l
}

// enterEngine chooses an engine for a query. The query reaches the queue of the engine after the
// frontend overhead.
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

// submit adds a query to the queue of the engine.
func (l *llm) submit(f flight) {
	now, q := l.stage.run.loop.Now(), &l.stage.run.queries[f.query]
	if len(l.inFlight) == 0 {
		l.began = now
	}
	l.Skip(now)
	id, err := l.Submit(now, sim.Request{PromptTokens: int(q.Prompt), OutputTokens: int(q.Output)})
	if err != nil {
		panic(fmt.Sprintf("stage %d: %v", l.stage.number, err)) // impossible: Run has checked the query
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

// advance processes the events of the engine that are due. It does nothing if it was called by a
// timer that an earlier timer has replaced.
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

// ended is called after the last token of a query. It records the query's times and sends it to the
// next stages.
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

// outputMean is the running mean of output tokens per query: extproc expects as many for the next
// query.
type outputMean struct{ sum, count float64 }

// defaultOutput is the expected number of output tokens while no query has ended.
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
