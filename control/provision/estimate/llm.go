package estimate

import (
	"fmt"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/sim"
)

// llm is an engine of a stage whose model makes tokens.
type llm struct {
	*sim.Engine
	stage  *stage
	number int
	flying map[sim.ID]flight
	began  float64 // since when it has had something to do
	due    float64 // when it is looked at
	look   func()
}

// flight is a query at an engine.
type flight struct {
	query int32
	came  float64 // to the stage
	claim pick.Claim
}

// addEngines gives a stage its engines. Where there may be as many as there are queries they are made as they are needed.
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
		panic(fmt.Sprintf("stage %d: %v", s.number, err)) // Run has made one
	}
	l := &llm{Engine: e, stage: s, number: len(s.llms), flying: make(map[sim.ID]flight), due: -1}
	l.look = l.advance
	s.llms = append(s.llms, l)
	return l
}

// enterEngine sends a query to an engine, in whose queue it is after its intake.
func (s *stage) enterEngine(q int32) {
	is, now := &s.run.queries[q], s.run.loop.Now()
	f := flight{query: q, came: now}
	var l *llm
	switch n := len(s.idle); {
	case s.picker != nil:
		var to int
		to, f.claim = s.picker.pickEngine(s.lot(q), int(is.Prompt), s.habit.output(), now)
		l = s.llms[to]
	case n > 0:
		l, s.idle = s.idle[n-1], s.idle[:n-1]
	default:
		l = s.newEngine()
	}
	if intake := s.Engine.Intake; intake > 0 {
		s.run.loop.At(now+intake, func() { l.submit(f) })
		return
	}
	l.submit(f)
}

// submit has the engine have a query.
func (l *llm) submit(f flight) {
	now, q := l.stage.run.loop.Now(), &l.stage.run.queries[f.query]
	if len(l.flying) == 0 {
		l.began = now
	}
	l.Skip(now)
	id, err := l.Submit(now, sim.Request{PromptTokens: int(q.Prompt), OutputTokens: int(q.Output)})
	if err != nil {
		panic(fmt.Sprintf("stage %d: %v", l.stage.number, err)) // Run has seen that it fits
	}
	l.flying[id] = f
	l.wake()
}

// wake has the engine looked at when something happens that matters.
func (l *llm) wake() {
	at, ok := l.NextEvent()
	if !ok || at == l.due {
		return
	}
	l.due = at
	l.stage.run.loop.At(at, l.look)
}

// advance has the engine do what is due. Where a query came after this was asked for, it is due at another time.
func (l *llm) advance() {
	now := l.stage.run.loop.Now()
	if now != l.due {
		return
	}
	l.due = -1
	l.Skip(now)
	for _, ev := range l.Advance(now) {
		if ev.Kind == sim.Finished {
			f := l.flying[ev.ID]
			delete(l.flying, ev.ID)
			l.ended(f, &ev.Record, now)
		}
	}
	l.wake()
}

// ended has a query go on whose last token is out.
func (l *llm) ended(f flight, is *sim.Record, now float64) {
	s := l.stage
	q := &s.run.queries[f.query]
	q.took.FirstToken = is.FirstToken - q.At
	q.took.PerToken = (is.LastToken - is.FirstToken) / float64(max(1, q.Output-1))
	s.seen.Queries++
	s.seen.Tokens += int(q.Output)
	s.seen.Waited += is.Scheduled - is.Arrived
	s.seen.Computed += now - f.came - (is.Scheduled - is.Arrived)
	s.seen.Latency.Add(now - f.came)
	s.seen.FirstToken.Add(is.FirstToken - f.came)
	if len(l.flying) == 0 {
		s.seen.Busy += now - l.began
	}
	s.habit.add(float64(q.Output))
	if s.picker != nil {
		if s.picker.ended(l.number, f.claim) {
			s.pods.left()
		}
	} else {
		s.idle = append(s.idle, l)
	}
	s.run.goOn(f.query, s.number)
}

// habit is how many tokens answers have had, in the mean: what extproc takes the next one to have.
type habit struct{ sum, count float64 }

// usual is how many tokens an answer is taken to have before one has ended.
const usual = 100

func (h *habit) add(tokens float64) {
	h.sum += tokens
	h.count++
}

func (h *habit) output() int {
	if h.count == 0 {
		return usual
	}
	return int(h.sum / h.count)
}
