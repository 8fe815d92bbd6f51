package endpointstate

import (
	"sync/atomic"

	"github.com/headgate/headgate/internal/engine"
)

// window learns how many requests of this process an engine can run at once. It is the limit of
// requests in flight while predictions are not trusted; see [pick.Gate]. Like TCP's congestion
// window, it grows exponentially until requests first wait in the engine, and then linearly. Only
// scrapes and rejections change it. Any goroutine may read limit.
type window struct {
	limit atomic.Int64 // 0 until a scrape reports the number of waiting requests
	// waited reports that requests have waited in the engine, so that growth is linear.
	waited bool
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
	// freePart: of a full window, 1/freePart may be free, rounded down. Some of it is headroom, and
	// some requests have just ended.
	freePart = 4
)

// scraped changes the window after a scrape with known numbers. InFlight is the number of this
// process's requests in flight. If more than a few requests wait, the engine runs a part of all
// requests, and the window becomes the same part of this process's requests.
func (w *window) scraped(inFlight int64, running, waiting engine.Value) {
	queued, known := waiting.Get()
	if !known {
		return
	}
	limit := w.limit.Load()
	run := running.Or(max(0, float64(inFlight)-queued)) // Triton reports only requests that wait
	switch {
	case limit == 0:
		limit = firstWindow
	case queued > fewWaiting+run*waitingShare:
		limit = min(limit, int64(float64(inFlight)*(run/(run+queued))))
		w.waited = true
	case queued > 0 || inFlight < limit-limit/freePart:
	case w.waited:
		limit += 1 + limit/16
	default:
		limit *= 2
	}
	w.limit.Store(min(max(1, limit), lastWindow))
}

// rejected changes the window after the engine has rejected a request because its queue was full.
func (w *window) rejected(inFlight int64) {
	if limit := w.limit.Load(); limit > 0 {
		w.waited = true
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
