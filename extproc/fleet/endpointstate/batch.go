package endpointstate

import (
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/engine"
)

// batch learns how many requests an engine runs at once, if its profile states more. Engines do not
// report this limit (vLLM's --max-num-seqs), and a profile may contain the engine's default. Only
// requests that wait for a whole second show that the batch is full, because prompts wait for a
// moment anyway. The KV cache must not be full then. The limit grows while the batch is full and
// nobody waits. Only scrapes change it. Any goroutine may read limit.
type batch struct {
	limit atomic.Int64 // 0 until requests have waited for a second
	// since is the first scrape of the latest series in which requests waited; zero if there is
	// none. most is the largest number of running requests in the series.
	since time.Time
	most  float64
	// slowly is the number of scrapes that must still make the limit grow before it doubles.
	slowly int
}

const (
	// fullAfter is how long more than a few requests wait in an engine whose batch is full.
	fullAfter = time.Second
	// kvFull is the least use of a KV cache that explains why requests wait.
	kvFull = 0.9
	// nearlyFull: a batch is full if at most 1/nearlyFull of its limit is free, rounded down.
	nearlyFull = 8
)

// scraped changes the limit after a scrape at this time. Slots reports that more adapters have
// requests than the engine has slots: then requests wait for a slot.
func (b *batch) scraped(at time.Time, load *engine.Load, slots bool) {
	running, known := load.Running.Get()
	waiting, reported := load.Waiting.Get()
	if !known || !reported || running > mostWaiting || waiting > mostWaiting {
		return
	}
	limit := b.limit.Load()
	switch {
	case slots, load.KVUsage.Or(0) >= kvFull:
		b.since = time.Time{}
	case waiting > fewWaiting+running*waitingShare:
		if b.since.IsZero() || at.Before(b.since) { // the clock may be set back
			b.since, b.most = at, 0
		}
		b.most = max(b.most, running)
		if b.most >= 1 && at.Sub(b.since) >= fullAfter && (limit == 0 || b.most < float64(limit)) {
			b.limit.Store(int64(b.most))
			b.slowly = firstStep
		}
	default:
		b.since = time.Time{}
		if limit > 0 && waiting == 0 && running >= float64(limit-limit/nearlyFull) {
			b.limit.Store(min(limit+max(1, limit>>b.slowly), lastWindow))
			b.slowly = max(0, b.slowly-1)
		} else if waiting > 0 {
			b.slowly = firstStep // the limit is about right
		}
	}
}
