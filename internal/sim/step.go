package sim

import (
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// scheduled is one sequence's part of a step.
type scheduled struct {
	s *sequence
	// yields reports whether the part ends with an output token: then all tokens so far are
	// computed.
	yields bool
}

// startStep starts what is due at now, if anything is: a requested load, alone, otherwise a batch.
func (e *Engine) startStep(now float64) {
	e.busy, e.batch, e.loaded = false, e.batch[:0], e.loaded[:0]
	if seconds, ok := e.startLoad(now); ok {
		e.busy, e.until = true, now+seconds
		return
	}
	w := e.fillStep(now)
	if len(e.batch) == 0 {
		return
	}
	e.busy = true
	e.until = now + w.loading + e.profile.StepTime(w.Work)
}

// advanceAsync takes the output of the step before the launched one, and launches the next.
func (e *Engine) advanceAsync(now float64) {
	if e.busy {
		e.finishLoads(now)
		e.finishStep(e.before, now)
	}
	e.busy, e.loaded = true, e.loaded[:0]
	e.before, e.batch = e.batch, e.before[:0]
	computed := max(now, e.ends) // when the accelerator becomes idle
	launched := now
	if seconds, ok := e.startLoad(now); ok {
		launched += seconds
	} else if w := e.fillStep(now); len(e.batch) > 0 {
		begins := now + w.loading
		launched = begins + e.profile.LaunchTime(w.Work)
		e.ends = max(launched, max(begins, computed)+e.profile.ComputeTime(w.Work))
	}
	switch {
	case len(e.before) > 0:
		e.until = max(launched, computed)
	case len(e.batch) > 0 || len(e.loaded) > 0: // no output to wait for: the next step is scheduled right after this launch
		e.until = launched
	default:
		e.busy = false
	}
}

// startLoad does a requested load, if one is due, and returns its duration in seconds.
func (e *Engine) startLoad(now float64) (seconds float64, ok bool) {
	if len(e.loads) == 0 || e.loads[0].at > now {
		return 0, false
	}
	asked := e.loads[0]
	e.loads = slices.Delete(e.loads, 0, 1)
	seconds = e.loadHost(asked.id, asked.adapter)
	// A slot may have the old weights.
	e.slots.drop(asked.adapter)
	return seconds, true
}

// fillStep schedules the next step.
func (e *Engine) fillStep(now float64) work {
	w := work{budget: e.profile.Limits.MaxBatchedTokens}
	e.scheduleRunning(&w, now)
	// vLLM admits no request in a step with a preemption. This needs no rule here: the preempted
	// sequence is at the head of the queue, and at least one of its former blocks is in use, so it
	// does not fit and those behind it wait.
	e.scheduleWaiting(&w, now)
	return w
}

// work is the content of a step so far.
type work struct {
	profile.Work
	budget  int     // remaining token budget
	loading float64 // seconds
}

// scheduleRunning gives every running sequence its next tokens, in order of admission, and preempts
// the last ones if there is no room.
func (e *Engine) scheduleRunning(w *work, now float64) {
	for i := 0; i < len(e.running) && w.budget > 0; i++ {
		s := e.running[i]
		if s.produced+s.flying == s.output {
			continue // its last token is in a scheduled step
		}
		n := min(s.tokens()-s.computed, w.budget)
		for !e.kv.grow(s, s.computed+n) {
			victim := e.running[len(e.running)-1]
			e.running = e.running[:len(e.running)-1]
			e.preempt(victim, now)
			if victim == s {
				return
			}
		}
		e.schedule(w, s, n)
	}
}

// scheduleWaiting admits waiting requests in order of arrival while there is room. It skips a
// request whose adapter gets no slot, and stops at one that does not fit into the KV cache.
func (e *Engine) scheduleWaiting(w *work, now float64) {
	kept, next := 0, 0
	for ; next < len(e.waiting) && w.budget > 0 && len(e.running) < e.profile.Limits.MaxSequences; next++ {
		s := e.waiting[next]
		if s.record.Arrived > now {
			break
		}
		if defers := !e.slotServes(s.Adapter); defers {
			e.setDeferred(s, true)
			e.waiting[kept] = s
			kept++
			continue
		}
		e.setDeferred(s, false)
		n, ok := e.kv.admit(s, w.budget)
		if !ok {
			break
		}
		e.enter(s, now)
		e.schedule(w, s, n)
	}
	if next > kept {
		e.waiting = slices.Delete(e.waiting, kept, next)
	}
}

// slotServes reports whether one more sequence of the adapter can run: either the adapter is
// running, or there is a slot that no running sequence uses.
func (e *Engine) slotServes(adapter string) bool {
	return adapter == "" || e.inUse[adapter] > 0 || len(e.inUse) < e.profile.Limits.GPUAdapters
}

// enter makes a waiting sequence with allocated blocks a running one.
func (e *Engine) enter(s *sequence, now float64) {
	e.running = append(e.running, s)
	increment(e.inUse, s.Adapter)
	if s.started {
		return
	}
	s.started = true
	increment(e.active, s.Adapter)
	s.record.Scheduled = now
	s.record.Cached = s.computed
	e.counted.PrefixQueries += uint64(s.prompt) //nolint:gosec // Submit has seen that it is above 0
	e.counted.PrefixHits += uint64(s.computed)
	e.events = append(e.events, Event{Kind: Scheduled, At: now, ID: s.id, Record: s.record})
}

// schedule adds n more tokens of a running sequence, whose blocks are allocated, to the step.
func (e *Engine) schedule(w *work, s *sequence, n int) {
	if decodes := s.produced+s.flying > 0 && n == 1 && s.computed+1 == s.tokens(); decodes {
		w.Sequences++
		w.KVTokens += s.computed + n
	} else {
		w.AddPrompt(s.computed, n)
	}
	w.Adapters = w.Adapters || s.Adapter != ""
	e.kv.computed(s, s.computed+n)
	w.budget -= n
	w.loading += e.useAdapter(s.Adapter)
	yields := s.computed == s.tokens()
	if yields {
		s.flying++
	}
	e.batch = append(e.batch, scheduled{s, yields})
}

// preempt sends a sequence back to the head of the queue. It keeps its output tokens and computes
// their KV again.
func (e *Engine) preempt(s *sequence, now float64) {
	e.leave(s)
	for i, b := range e.before { // its token in that step is dropped
		if b.s == s {
			e.before[i].yields = false
		}
	}
	s.flying = 0
	s.record.Preemptions++
	e.counted.Preemptions++
	e.waiting = slices.Insert(e.waiting, 0, s)
	e.events = append(e.events, Event{Kind: Preempted, At: now, ID: s.id})
}

// finishLoads reports the loads that end at now.
func (e *Engine) finishLoads(now float64) {
	for _, l := range e.loaded {
		l.At = now
		e.events = append(e.events, l)
	}
}

// finishStep reports the output of a step at now.
func (e *Engine) finishStep(batch []scheduled, now float64) {
	finished, gave, tokens := false, false, 0
	for _, b := range batch {
		s := b.s
		if !b.yields || s.gone {
			continue // part of a prompt, or cancelled meanwhile
		}
		e.events = append(e.events, Event{Kind: Token, At: now, ID: s.id, Index: s.produced})
		e.counted.GeneratedTokens++
		gave, tokens = true, tokens+1
		if s.produced == 0 {
			tokens += s.prompt - s.record.Cached
			s.record.FirstToken = now
			e.counted.FirstToken.add(now - s.record.Arrived)
			e.counted.PromptTokens += uint64(s.prompt) //nolint:gosec // as above
			e.counted.CachedTokens += uint64(s.record.Cached)
		} else {
			e.counted.InterToken.add(now - s.latest)
		}
		s.latest = now
		s.flying--
		s.produced++
		if s.produced < s.output {
			continue
		}
		s.record.LastToken = now
		e.counted.Queue.add(s.record.Scheduled - s.record.Arrived)
		e.counted.Prefill.add(s.record.FirstToken - s.record.Scheduled)
		e.counted.PrefillTokens += uint64(s.prompt - s.record.Cached) //nolint:gosec // no more are cached than there are
		e.counted.Decode.add(now - s.record.FirstToken)
		e.events = append(e.events, Event{Kind: Finished, At: now, ID: s.id, Record: s.record})
		e.leave(s)
		e.forget(s)
		finished = true
	}
	if gave {
		e.counted.Steps.add(1, tokens)
	}
	if finished {
		e.running = slices.DeleteFunc(e.running, func(s *sequence) bool { return s.produced == s.output })
	}
}

// tokens is the number of prompt and output tokens, including output of scheduled steps.
func (s *sequence) tokens() int { return s.prompt + s.produced + s.flying }

// token returns the token at position i.
func (s *sequence) token(i int) uint32 {
	if i < len(s.Prompt) {
		return s.Prompt[i]
	}
	return s.Output[i-len(s.Prompt)]
}
