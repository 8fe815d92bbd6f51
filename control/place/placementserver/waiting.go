package placementserver

import (
	"math"
	"sync"
	"time"

	"github.com/headgate/headgate/api/placement"
)

// waiting contains what waits at each extproc by pool and band, and the sums that were sent to each
// extproc. It is safe for concurrent use.
type waiting struct {
	began time.Time // the clock by which extprocs take turns has the time since then

	mu     sync.Mutex // guards the fields below and the contents of all pages
	bands  map[bandKey]*bandLines
	pages  map[*sentWaiting]bool
	joined uint64
}

// bandKey identifies a band of a pool.
type bandKey struct {
	pool string
	band int32
}

// bandLines is what extprocs reported about one band. Ended is the service of lines that were
// removed, so that sums do not fall.
type bandLines struct {
	lines map[*sentWaiting]bandLine
	ended service
}

type service struct{ seconds, tokens float64 }

func (s *service) add(o service) {
	s.seconds += o.seconds
	s.tokens += o.tokens
}

// bandLine is a Waiting without its pool and band.
type bandLine struct {
	requests uint32
	share    float64
	passes   bool
	service
}

// bandSums is an OthersWaiting without its pool and band.
type bandSums struct {
	requests             uint64
	share, before, after float64
	service
}

// sentWaiting contains the sums that were sent to one extproc.
type sentWaiting struct {
	news  chan<- struct{} // full if there may be sums to send
	order uint64
	sent  map[bandKey]bandSums // without empty ones
	todo  map[bandKey]bool
}

func newWaiting() *waiting {
	return &waiting{began: time.Now(), bands: make(map[bandKey]*bandLines), pages: make(map[*sentWaiting]bool)}
}

// join adds an extproc, and marks all sums to be sent to it. News must have capacity 1.
func (w *waiting) join(news chan<- struct{}) *sentWaiting {
	p := &sentWaiting{news: news, sent: make(map[bandKey]bandSums), todo: make(map[bandKey]bool)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.joined++
	p.order = w.joined
	w.pages[p] = true
	for key := range w.bands {
		p.mark(key)
	}
	return p
}

// part removes all that an extproc reported.
func (w *waiting) part(p *sentWaiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pages, p)
	for key := range w.bands {
		w.set(p, key, bandLine{})
	}
}

// report records what an extproc reports.
func (w *waiting) report(p *sentWaiting, told []*placement.Waiting) {
	if len(told) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range told {
		w.set(p, bandKey{t.GetPool(), t.GetBand()}, bandLine{
			t.GetRequests(), finite(t.GetShare()), t.GetPasses(), service{finite(t.GetSeconds()), finite(t.GetTokens())},
		})
	}
}

// finite returns x, or 0 for a number that could not be added up.
func finite(x float64) float64 {
	if !(x >= 0 && x <= math.MaxFloat32) {
		return 0
	}
	return x
}

// set records what waits at an extproc in one band, and marks it to be sent to all others. The
// caller holds mu.
func (w *waiting) set(p *sentWaiting, key bandKey, is bandLine) {
	b := w.bands[key]
	if b == nil {
		b = &bandLines{lines: make(map[*sentWaiting]bandLine)}
	}
	was, told := b.lines[p]
	if was == is {
		return
	}
	if is != (bandLine{}) {
		b.lines[p], w.bands[key] = is, b
	} else if told {
		b.ended.add(was.service)
		if delete(b.lines, p); len(b.lines) == 0 {
			delete(w.bands, key)
		}
	}
	for o := range w.pages {
		if o != p {
			o.mark(key)
		}
	}
	if !told { // it has not received the sums of a band in which it was alone
		p.mark(key)
	}
}

// mark records that the sums of a band may have changed.
func (p *sentWaiting) mark(key bandKey) {
	if p.todo[key] = true; len(p.todo) == 1 {
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
}

// take returns the sums to send to an extproc, and the time of the clock.
func (w *waiting) take(p *sentWaiting, now time.Time) (out []*placement.OthersWaiting, clock time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range p.todo {
		is := w.others(p, key)
		if is == p.sent[key] {
			continue
		}
		if p.sent[key] = is; is.requests == 0 {
			delete(p.sent, key)
		}
		out = append(out, &placement.OthersWaiting{
			Pool: key.pool, Band: key.band, Requests: is.requests, Share: is.share, Before: is.before, After: is.after,
			Seconds: is.seconds, Tokens: is.tokens,
		})
	}
	clear(p.todo)
	return out, now.Sub(w.began)
}

// others returns the sums of all other extprocs in a band. They are zero if no request waits there.
// The caller holds mu.
func (w *waiting) others(p *sentWaiting, key bandKey) (all bandSums) {
	b := w.bands[key]
	if b == nil {
		return bandSums{}
	}
	all.service = b.ended
	for o, line := range b.lines {
		if o == p {
			continue
		}
		all.requests += uint64(line.requests)
		all.share += line.share
		all.add(line.service)
		switch {
		case line.passes:
		case o.order < p.order:
			all.before += line.share
		default:
			all.after += line.share
		}
	}
	if all.requests == 0 {
		return bandSums{}
	}
	return all
}
