package endpointstate

import (
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

// batch learns how many requests an engine runs at once, if its profile states more. Engines do not
// report this limit (vLLM's --max-num-seqs), and a profile may contain the engine's default. Only
// requests that wait for two seconds, while a nearly constant number runs, show that the batch is
// full, because prompts wait for a moment anyway. The KV cache must not be full then. Requests that
// the engine reports as deferred, for example for an adapter slot, do not count.
//
// The limit holds for a while, because each attempt to exceed it lets requests wait in the engine.
// Then it grows just enough for one more request while the batch is full and nobody waits. If more
// requests run than before, it grows faster; if they wait, it falls back. If more requests run than
// the limit, their number becomes the limit at once. Only scrapes change it. Any goroutine may read
// limit.
type batch struct {
	limit atomic.Int64 // 0 until requests have waited for long
	// since and last are the first and the last scrape of the latest series in which requests
	// waited; since is zero if there is none. most is the number of requests that ran at since.
	// A scrape at which more requests run begins another series.
	since, last time.Time
	most        float64
	// The limit first grows pause after it has fallen to learned, and then every shortPause.
	// changed is when it last changed. slowly is how often it must still grow before it doubles.
	pause   time.Duration
	learned int64
	changed time.Time
	slowly  int
	// before is the limit before it last grew; 0 if it has not grown since it last fell.
	before int64
}

const (
	// fullAfter is how long requests wait in an engine whose batch is full, while the prompts of
	// others take less time.
	fullAfter = 2 * time.Second
	// fullAgain replaces fullAfter once the limit has grown and still no more requests run.
	fullAgain = time.Second
	// steadyPart: the number of running requests of a full batch changes by at most one and
	// 1/steadyPart.
	steadyPart = 16
	// kvFull is the least use of a KV cache that explains why requests wait.
	kvFull = 0.9
	// nearlyFull: a batch is full if at most 1/nearlyFull of its limit is free, rounded down.
	nearlyFull = 8
	// firstPause is how long a new limit holds. The pause doubles each time the engine confirms the
	// limit, up to longestPause.
	firstPause   = 15 * time.Second
	longestPause = 8 * time.Minute
	shortPause   = 2 * time.Second
)

// scraped changes the limit after a scrape at this time. Slots reports that more adapters have
// requests than the engine has slots: then requests wait for a slot. Prompts is the predicted time
// until the engine has computed all prompts that it has.
func (b *batch) scraped(at time.Time, load *engine.Load, slots bool, prompts time.Duration) {
	running, known := load.Running.Get()
	waiting, reported := load.Waiting.Get()
	if !known || !reported || running > mostWaiting || waiting > mostWaiting {
		return
	}
	waiting -= load.Deferred.Or(0)
	limit := b.limit.Load()
	if limit > 0 && running > float64(limit) {
		limit = int64(running)
		b.limit.Store(limit)
	}
	after := fullAfter
	if b.before > 0 {
		after = fullAgain
	}
	switch {
	case slots, prompts > after, load.KVUsage.Or(0) >= kvFull:
		b.since = time.Time{}
	case waiting > 0:
		if b.since.IsZero() || at.Before(b.since) || // the clock may be set back
			at.Sub(b.last) > fullAfter || running > b.most || running < b.most-1-b.most/steadyPart {
			b.since, b.most = at, running
		}
		b.last = at
		waited := at.Sub(b.since)
		switch {
		case b.most < 1 || limit > 0 && b.most >= float64(limit):
		case waited >= fullAgain && b.confirms(running+waiting):
			b.fall(at, b.before)
		case waited >= fullAfter:
			b.fall(at, int64(b.most))
		}
	default:
		b.since = time.Time{}
		if limit > 0 && running >= float64(limit-limit/nearlyFull) && running > float64(b.before) {
			b.grow(at)
		}
	}
}

// confirms reports whether the engine, which has this many requests, runs about as many as before
// the limit grew.
func (b *batch) confirms(all float64) bool {
	before := float64(b.before)
	return all > before && b.most <= before && b.most >= before-1-before/steadyPart
}

// fall lowers the limit.
func (b *batch) fall(at time.Time, most int64) {
	b.pause = min(2*b.pause, longestPause)
	if near := b.learned / nearlyFull; b.learned == 0 || most < b.learned-near || most > b.learned+near {
		b.pause = firstPause
	}
	b.limit.Store(most)
	b.learned, b.changed, b.slowly, b.before = most, at, firstStep, 0
}

// grow raises the limit if it has held for long enough.
func (b *batch) grow(at time.Time) {
	pause := shortPause
	if b.slowly == firstStep {
		pause = b.pause
	}
	held := at.Sub(b.changed)
	if held < 0 { // the clock was set back
		b.changed = at
	}
	if held < pause {
		return
	}
	limit := b.limit.Load()
	next := limit + max(1, limit>>b.slowly)
	if b.slowly == firstStep { // one more, beside the headroom that requests may leave
		for next = limit + 1; pick.WithHeadroom(next, pick.DefaultHeadroom) <= limit; {
			next++
		}
	}
	b.limit.Store(min(next, lastWindow))
	b.changed, b.slowly, b.before = at, max(0, b.slowly-1), limit
}

// forget forgets what was learned.
func (b *batch) forget() {
	b.limit.Store(0)
	b.since, b.learned, b.before = time.Time{}, 0, 0
}
