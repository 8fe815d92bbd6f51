package placementserver

import (
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/api/placement"
)

const (
	// backlogsInterval is the least time between two Updates that tell an extproc what others have
	// at endpoints.
	backlogsInterval = 20 * time.Millisecond
	// backlogsTolerance is how far off an extproc may be of when others' prompts are computed. A
	// step of an engine takes some 20 ms.
	backlogsTolerance = 5 * time.Millisecond
)

// ledger is what extprocs have at endpoints, each as it told last, and what each was told of the
// others. It is safe for concurrent use.
type ledger struct {
	mu     sync.Mutex         // guards the following, and all pages
	shares map[string][]share // by endpoint; none that is nothing
	pages  map[*page]bool
}

// page is what one extproc was told.
type page struct {
	news  chan struct{}    // capacity 1; never closed: there is something to take
	lines map[string]*line // by endpoint, where it was told of anything or is to be
	todo  []*line
	out   []*placement.Backlog // as taken last
}

// line is what it was told of an endpoint. An engine computes prompts of all extprocs one after the
// other, so that time passes once for those of all others: they are computed at through.
type line struct {
	endpoint string
	told     sums
	through  time.Time
	todo     bool
}

// share is what one extproc has at an endpoint.
type share struct {
	of *page
	sums
}

// sums is a Backlog. Time changes none.
type sums struct {
	requests                uint32
	through                 time.Time // when all prompts are computed, where the engine computes nobody else's
	beside, urgency, tokens uint64
}

// left is for how long prompts are computed yet.
func (s *sums) left(now time.Time) time.Duration { return max(0, s.through.Sub(now)) }

// nothing says whether there is nothing at the endpoint. Prompts of nobody are computed by nobody.
func (s *sums) nothing() bool {
	return s.requests == 0 && s.beside == 0 && s.urgency == 0 && s.tokens == 0
}

// is says whether o is as good.
func (s *sums) is(o *sums, now time.Time) bool {
	return s.requests == o.requests && s.beside == o.beside && s.urgency == o.urgency && s.tokens == o.tokens &&
		(s.left(now)-o.left(now)).Abs() <= backlogsTolerance
}

func newLedger() *ledger {
	return &ledger{shares: make(map[string][]share), pages: make(map[*page]bool)}
}

// join begins the page of one more extproc, which is to be told everything.
func (l *ledger) join(now time.Time) *page {
	p := &page{news: make(chan struct{}, 1), lines: make(map[string]*line)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pages[p] = true
	for endpoint, all := range l.shares {
		for i := range all {
			p.mark(endpoint, all[i].left(now), now)
		}
	}
	return p
}

// part forgets what an extproc told.
func (l *ledger) part(p *page, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pages, p)
	for endpoint := range l.shares {
		l.set(p, endpoint, sums{}, now)
	}
}

// report takes what an extproc tells at a time.
func (l *ledger) report(p *page, told []*placement.Backlog, now time.Time) {
	if len(told) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range told {
		l.set(p, b.GetEndpoint(), sums{
			b.GetRequests(), now.Add(time.Duration(min(b.GetPrefillUs(), maxPrefillUs)) * time.Microsecond), b.GetBesidePs(),
			b.GetUrgency(), b.GetTokens(),
		}, now)
	}
}

// maxPrefillUs bounds what an extproc may say: a day.
const maxPrefillUs = 24 * 3600 * 1e6

// set writes down what an extproc has at an endpoint at a time, for all others to be told. The
// caller holds mu.
func (l *ledger) set(p *page, endpoint string, is sums, now time.Time) {
	all := l.shares[endpoint]
	at := slices.IndexFunc(all, func(s share) bool { return s.of == p })
	more := is.left(now)
	if at >= 0 {
		more -= all[at].left(now)
	}
	switch {
	case at < 0 && is.nothing():
		return
	case at < 0:
		l.shares[endpoint] = append(all, share{p, is})
	case !is.nothing():
		all[at].sums = is
	case len(all) == 1:
		delete(l.shares, endpoint)
	default:
		all[at] = all[len(all)-1]
		l.shares[endpoint] = all[:len(all)-1]
	}
	for o := range l.pages {
		if o != p {
			o.mark(endpoint, more, now)
		}
	}
}

// mark notes that there is news of an endpoint at a time: prompts of others take so much longer, or
// shorter.
func (p *page) mark(endpoint string, more time.Duration, now time.Time) {
	l := p.lines[endpoint]
	if l == nil {
		l = &line{endpoint: endpoint}
		p.lines[endpoint] = l
	}
	if more != 0 {
		if l.through.Before(now) {
			l.through = now
		}
		l.through = l.through.Add(more)
	}
	if l.todo {
		return
	}
	l.todo = true
	if p.todo = append(p.todo, l); len(p.todo) == 1 {
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
}

// take returns what an extproc is to be told at a time. It is good until the next call.
func (l *ledger) take(p *page, now time.Time) []*placement.Backlog {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, of := range p.todo {
		of.todo = false
		is := l.others(p, of)
		if !of.told.is(&is, now) {
			of.told = is
			if n == len(p.out) {
				p.out = append(p.out, new(placement.Backlog))
			}
			is.write(p.out[n], of.endpoint, now)
			n++
		}
		if of.told.nothing() {
			delete(p.lines, of.endpoint)
		}
	}
	p.todo = p.todo[:0]
	return p.out[:n]
}

// others is what all others have at the endpoint of a line; where they have nothing, no prompt of
// theirs is computed. The caller holds mu.
func (l *ledger) others(p *page, of *line) (all sums) {
	for i := range l.shares[of.endpoint] {
		if s := &l.shares[of.endpoint][i]; s.of != p {
			all.requests += s.requests
			all.beside += s.beside
			all.urgency += s.urgency
			all.tokens += s.tokens
		}
	}
	if all.nothing() {
		of.through = time.Time{}
	}
	all.through = of.through
	return all
}

// write makes b of s.
func (s *sums) write(b *placement.Backlog, endpoint string, now time.Time) {
	b.Endpoint, b.Requests, b.PrefillUs = endpoint, s.requests, uint64(s.left(now).Microseconds())
	b.BesidePs, b.Urgency, b.Tokens = s.beside, s.urgency, s.tokens
}
