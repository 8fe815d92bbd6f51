package sim

import "github.com/headgate/headgate/internal/profile"

// In most steps, each running sequence gets one more token and nothing else happens: no request
// arrives or ends. NextEvent returns the time after such steps, and Skip runs them all at once. The
// results are bit-identical to calling Advance for each step, except that there are no Token
// events.

// NextEvent is like Next, but ignores steps in which running sequences only get one more token. If
// the caller calls Submit, Load or Cancel at an earlier time, it must call Skip before.
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

// after computes the times of the next step. at is when the output of a step appears, and ends is
// when the accelerator has computed the step after it. w is the work of the next step, which loads
// no adapter. after returns when the next output appears, and when the next step has been computed.
func (e *Engine) after(at, ends float64, w profile.Work) (next, computed float64) {
	if e.profile.AsyncScheduling {
		return max(at, ends), max(at, ends) + e.profile.ComputeTime(w)
	}
	return at + e.profile.StepTime(w), ends
}

// Skip runs the steps that end before the given time, if running sequences only get one more token
// in them.
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
	for _, s := range e.running {                           // in the order in which the last step used the adapters
		e.useAdapter(s.Adapter)
	}
}

// quiet returns how many steps, including the running one, only give each running sequence one more
// token and are followed by another step.
func (e *Engine) quiet() int {
	full := len(e.running) >= e.profile.Limits.MaxSequences
	if !e.busy || len(e.running) == 0 || len(e.batch) != len(e.running) || len(e.loads)+len(e.loaded) > 0 || len(e.waiting) > 0 && !full {
		return 0
	}
	out := e.batch // the step whose output appears next
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

// decodes returns the work of the step after the running one, assuming that it gives each running
// sequence one more token.
func (e *Engine) decodes() (w profile.Work) {
	for _, s := range e.running {
		w.Sequences++
		w.KVTokens += s.computed + 1
		w.Adapters = w.Adapters || s.Adapter != ""
	}
	return w
}
