package sim

import (
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// scheduled is the part of a step that belongs to one sequence.
type scheduled struct {
	s *sequence
	// yields reports whether the part produces an output token. If it does, the KV of all earlier
	// tokens has been computed.
	yields bool
}

// startStep starts the next step at the time now, if there is work: a requested adapter load alone,
// or otherwise a batch.
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

// advanceAsync handles the output of the step before the launched one, and launches the next step.
func (e *Engine) advanceAsync(now float64) {
	if e.busy {
		e.finishLoads(now)
		e.finishStep(e.before, now)
	}
	e.busy, e.loaded = true, e.loaded[:0]
	e.before, e.batch = e.batch, e.before[:0]
	computed := max(now, e.ends) // when the accelerator has computed all launched steps
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
	case len(e.batch) > 0 || len(e.loaded) > 0: // no output is expected: the next step is scheduled when this launch ends
		e.until = launched
	default:
		e.busy = false
	}
}

// startLoad starts a requested adapter load if one is due. It returns the duration of the load in
// seconds.
func (e *Engine) startLoad(now float64) (seconds float64, ok bool) {
	if len(e.loads) == 0 || e.loads[0].at > now {
		return 0, false
	}
	asked := e.loads[0]
	e.loads = slices.Delete(e.loads, 0, 1)
	seconds = e.loadHost(asked.id, asked.adapter)
	// The slot of this adapter may contain the old weights.
	e.slots.drop(asked.adapter)
	return seconds, true
}

// fillStep schedules the sequences of the next step.
func (e *Engine) fillStep(now float64) work {
	w := work{budget: e.profile.Limits.MaxBatchedTokens}
	e.scheduleRunning(&w, now)
	// vLLM admits no request in a step with a preemption. No code is needed for that: the preempted
	// sequence is at the head of the queue, and at least one of its former blocks is in use. So it
	// does not fit, and the requests behind it wait.
	e.scheduleWaiting(&w, now)
	return w
}

// work is the work that is scheduled for a step so far.
type work struct {
	profile.Work
	budget  int     // remaining token budget
	loading float64 // seconds of adapter loads
}

// scheduleRunning schedules the next tokens of the running sequences, in order of admission. If the
// KV cache is full, it preempts the sequences that were admitted last.
func (e *Engine) scheduleRunning(w *work, now float64) {
	for i := 0; i < len(e.running) && w.budget > 0; i++ {
		s := e.running[i]
		if s.produced+s.flying == s.output {
			continue // the sequence's last output token is already in a scheduled step
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

// scheduleWaiting admits waiting requests in order of arrival as long as there is room. It skips
// requests whose adapter gets no slot. It stops at the first request that does not fit into the KV
// cache.
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

// slotServes reports whether one more sequence with this adapter can run. It can if a running
// sequence uses the adapter, or if there is a slot that no running sequence uses.
func (e *Engine) slotServes(adapter string) bool {
	return adapter == "" || e.inUse[adapter] > 0 || len(e.inUse) < e.profile.Limits.GPUAdapters
}

// enter adds a waiting sequence to the running ones. The blocks of the sequence are already
// allocated.
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

// schedule adds the next n tokens of a running sequence to the step. The blocks for these tokens
// are already allocated.
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

// preempt moves a running sequence to the head of the queue. The sequence keeps its output tokens,
// but their KV must be computed again.
func (e *Engine) preempt(s *sequence, now float64) {
	e.leave(s)
	for i, b := range e.before { // the previous step's token for this sequence is dropped
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

// finishLoads adds the events of the adapter loads that end at the time now.
func (e *Engine) finishLoads(now float64) {
	for _, l := range e.loaded {
		l.At = now
		e.events = append(e.events, l)
	}
}

// finishStep handles the output of a step that appears at the time now.
func (e *Engine) finishStep(batch []scheduled, now float64) {
	finished, gave, tokens := false, false, 0
	for _, b := range batch {
		s := b.s
		if !b.yields || s.gone {
			continue // only a part of a prompt, or cancelled during the step
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

// tokens returns the number of prompt and output tokens, including output of scheduled steps.
func (s *sequence) tokens() int { return s.prompt + s.produced + s.flying }

// token returns the token at position i.
func (s *sequence) token(i int) uint32 {
	if i < len(s.Prompt) {
		return s.Prompt[i]
	}
	return s.Output[i-len(s.Prompt)]
}
