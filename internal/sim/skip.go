package sim

import "github.com/headgate/headgate/internal/profile"

// In most steps each running sequence gets one more token and nothing else happens: no request
// arrives or ends, and a caller that does not count tokens sees no change. NextEvent looks past
// such steps, and Skip does them all at once. The result is bit-identical to calling Advance for
// each, but without Token events.

// NextEvent is Next, but past the steps in which running sequences only get further tokens. Before
// a Submit, Load or Cancel at an earlier time, the caller must call Skip.
func (e *Engine) NextEvent() (at float64, ok bool) {
	if at, ok = e.Next(); !ok {
		return at, ok
	}
	w, ends := e.decodes(), e.ends
	for range e.quiet() {
		at, ends = e.after(at, ends, w)
		w.KVTokens += w.Sequences
	}
	return at, ok
}

// after returns when the output of the next step comes out and when the one after it has been
// computed, given that a step's output comes out at at, the one after it has been computed at ends,
// and the next one only does work.
func (e *Engine) after(at, ends float64, w profile.Work) (next, computed float64) {
	if e.profile.AsyncScheduling {
		return max(at, ends), max(at, ends) + e.profile.ComputeTime(w)
	}
	return at + e.profile.StepTime(w), ends
}

// Skip does the steps that end before until and only bring further tokens of running sequences.
func (e *Engine) Skip(until float64) {
	quiet := e.quiet()
	if quiet == 0 || e.until >= until {
		return
	}
	w, left := e.decodes(), quiet
	for ; quiet > 0 && e.until < until; quiet-- {
		now := e.until
		for _, s := range e.running {
			e.counted.InterToken.add(now - s.latest)
			s.latest = now
			s.produced++
			if !e.kv.grow(s, s.computed+1) {
				panic("sim: blocks that were counted as free are not")
			}
			e.kv.computed(s, s.computed+1)
		}
		e.counted.GeneratedTokens += uint64(len(e.running))
		e.until, e.ends = e.after(now, e.ends, w)
		w.KVTokens += w.Sequences
	}
	e.counted.Steps.add(uint64(left-quiet), len(e.running)) //nolint:gosec // it only falls
	for _, s := range e.running {                           // in the order of use in the last step
		e.useAdapter(s.Adapter)
	}
}

// quiet is the number of steps, from the running one on, that only bring each running sequence a
// further token and are followed by another step.
func (e *Engine) quiet() int {
	full := len(e.running) >= e.profile.Limits.MaxSequences
	if !e.busy || len(e.running) == 0 || len(e.batch) != len(e.running) || len(e.loads)+len(e.loaded) > 0 || len(e.waiting) > 0 && !full {
		return 0
	}
	out := e.batch // whose output is next
	if e.profile.AsyncScheduling {
		if out = e.before; len(out) != len(e.running) {
			return 0
		}
	}
	left := e.running[0].output
	for i, b := range out {
		if next := e.batch[i]; next.s != b.s || !b.yields || !next.yields || b.s.produced == 0 {
			return 0
		}
		left = min(left, b.s.output-b.s.produced-b.s.flying)
	}
	quiet, blocks := left, 0
	for _, s := range e.running {
		blocks += e.kv.blocksFor(s.computed+quiet) - len(s.blocks)
	}
	if blocks > e.kv.free() {
		return 0
	}
	return quiet
}

// decodes is the work of the step after the running one if that gives each running sequence a
// further token.
func (e *Engine) decodes() (w profile.Work) {
	for _, s := range e.running {
		w.Sequences++
		w.KVTokens += s.computed + 1
		w.Adapters = w.Adapters || s.Adapter != ""
	}
	return w
}
