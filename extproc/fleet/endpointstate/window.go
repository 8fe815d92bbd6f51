package endpointstate

import (
	"sync/atomic"

	"github.com/headgate/headgate/internal/engine"
)

// window learns how many requests of this process an engine can run at once. It is the limit of
// requests in flight while predictions are not trusted; see [pick.Gate]. Like TCP's congestion
// window, it grows exponentially until requests first wait in the engine. Then it grows slowly at
// first, and faster with each scrape in which it was too small. Only scrapes and rejections change
// it. Any goroutine may read limit.
type window struct {
	limit atomic.Int64 // 0 until a scrape reports the number of waiting requests
	// crowded reports that more than a few requests waited in the engine at the last scrape, and
	// ran is how many ran then. most is about the most that ran at once in the last scrapes.
	crowded   bool
	ran, most float64
	// waited reports that more than a few requests have ever waited in the engine. slowly is then
	// how many scrapes must still make the window grow before it doubles.
	waited bool
	slowly int
}

const (
	// firstWindow is the window of an engine that was never full. Growth is exponential, so it
	// reaches the 256 sequences of vLLM's default after three scrapes.
	firstWindow = 32
	lastWindow  = 1 << 16
	// fewWaiting and waitingShare are how many requests wait in an engine with room: those that
	// arrived since its current step began. The second is a share of the running requests.
	fewWaiting   = 1
	waitingShare = 1. / 16
	// mostWaiting is the largest number of waiting or running requests that counts. Larger ones are
	// errors.
	mostWaiting = 1 << 20
	// freePart: a window counts as full if at most 1/freePart of it is free, rounded down. The free
	// part is headroom, and places of requests that have just ended.
	freePart = 4
	// fallPart: a scrape lowers the window by at most 1/fallPart. The numbers of one scrape may be
	// far from those of the next, because requests have just begun to wait or to run.
	fallPart = 2
	// mostFalls: each scrape moves most by 1/mostFalls of the way to the running requests, if these
	// are fewer.
	mostFalls = 16
	// firstStep: after requests have waited, the window grows by 1/2^firstStep at first. Each
	// further growth doubles this part.
	firstStep = 4
)

// scraped changes the window after a scrape with known numbers. InFlight is the number of this
// process's requests in flight.
//
// If more than a few requests wait, the engine runs only a part of its requests. The window then
// becomes the same part of this process's requests. But requests that arrive together wait too,
// while the engine computes the prompts of those before them: 128 prompts of 512 tokens take 1.5 s
// on an H200. So the window falls only at the second scrape in a row with waiting requests, only if
// no more requests run than at the first, and not below what the engine ran lately. A full window
// grows while nobody waits, provided that the engine reports at least half of it as running. So an
// engine that never reports waiting requests has a window too.
func (w *window) scraped(inFlight int64, running, waiting engine.Value) {
	queued, known := waiting.Get()
	if !known || queued > mostWaiting {
		return
	}
	limit := w.limit.Load()
	run, reported := running.Get()
	if !reported { // Triton reports only requests that wait
		run = max(0, float64(inFlight)-queued)
	}
	run = min(run, mostWaiting)
	full := inFlight >= limit-limit/freePart
	before := w.crowded && run <= w.ran
	w.crowded, w.ran = queued > fewWaiting+run*waitingShare, run
	w.most = max(run, w.most-(w.most-run)/mostFalls)
	switch {
	case limit == 0:
		limit = firstWindow
	case w.crowded && before:
		runs := int64(float64(inFlight) * min(1, w.most/(run+queued)))
		limit = min(limit, max(runs, limit-limit/fallPart))
		w.waited, w.slowly = true, firstStep
	case w.crowded: // those that wait may have just arrived
	case queued > 0:
		if w.waited {
			w.slowly = firstStep // the window is about right
		}
	case full && run >= float64(limit/2):
		limit += max(1, limit>>w.slowly)
		w.slowly = max(0, w.slowly-1)
	}
	w.limit.Store(min(max(1, limit), lastWindow))
}

// rejected changes the window after the engine has rejected a request because its queue was full.
func (w *window) rejected(inFlight int64) {
	if limit := w.limit.Load(); limit > 0 {
		w.waited, w.slowly = true, firstStep
		w.limit.Store(max(1, min(limit, inFlight)*7/8))
	}
}

// Window returns the learned limit of this process's requests in flight at an endpoint; 0 if it is
// unknown.
func (s *State) Window(address string) int64 {
	if e := s.endpoints[address]; e != nil {
		return e.window.limit.Load()
	}
	return 0
}
