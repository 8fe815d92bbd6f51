package placementserver

import (
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/api/placement"
)

const (
	// backlogsInterval is the shortest time between two Updates with backlogs to one extproc.
	backlogsInterval = 20 * time.Millisecond
	// backlogsTolerance is by how much the end of the other extprocs' prompts may move without a
	// new Backlog for an extproc. A step of an engine takes about 20 ms.
	backlogsTolerance = 5 * time.Millisecond
)

// backlogs contains the last reported backlog of each extproc at each endpoint, and the sums that
// were sent to each extproc. It is safe for concurrent use.
type backlogs struct {
	mu     sync.Mutex         // guards the fields below and the contents of all pages
	shares map[string][]share // non-empty backlogs, by endpoint
	pages  map[*sentBacklogs]bool
}

// sentBacklogs contains the sums that were sent to one extproc.
type sentBacklogs struct {
	news  chan struct{}    // capacity 1: full if there may be sums to send; never closed
	lines map[string]*line // by endpoint, for all sums that were sent or must be sent
	todo  []*line
	out   []*placement.Backlog // result of the last call of take
}

// line is what was sent about one endpoint. The engine computes the prompts of all extprocs one
// after the other, so one time is enough: through is when the prompts of all other extprocs will
// have been computed.
type line struct {
	endpoint string
	sentAll  sums
	through  time.Time
	todo     bool
}

// share is the backlog of one extproc at an endpoint.
type share struct {
	of *sentBacklogs
	sums
}

// sums is a Backlog with absolute times, so that passing time does not change it.
type sums struct {
	requests                uint32
	through                 time.Time // when all these prompts are computed, if the engine computes no others
	beside, urgency, tokens uint64
}

// left returns how long the engine still needs for the prompts.
func (s *sums) left(now time.Time) time.Duration { return max(0, s.through.Sub(now)) }

// isEmpty reports whether there are no requests at the endpoint, and so no prompts.
func (s *sums) isEmpty() bool {
	return s.requests == 0 && s.beside == 0 && s.urgency == 0 && s.tokens == 0
}

// equals reports whether s and o are the same within backlogsTolerance.
func (s *sums) equals(o *sums, now time.Time) bool {
	return s.requests == o.requests && s.beside == o.beside && s.urgency == o.urgency && s.tokens == o.tokens &&
		(s.left(now)-o.left(now)).Abs() <= backlogsTolerance
}

func newBacklogs() *backlogs {
	return &backlogs{shares: make(map[string][]share), pages: make(map[*sentBacklogs]bool)}
}

// join adds an extproc, and marks all sums to be sent to it.
func (l *backlogs) join(now time.Time) *sentBacklogs {
	p := &sentBacklogs{news: make(chan struct{}, 1), lines: make(map[string]*line)}
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

// part removes all backlogs of an extproc.
func (l *backlogs) part(p *sentBacklogs, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pages, p)
	for endpoint := range l.shares {
		l.set(p, endpoint, sums{}, now)
	}
}

// report records the backlogs that an extproc reports.
func (l *backlogs) report(p *sentBacklogs, told []*placement.Backlog, now time.Time) {
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

// maxPrefillUs limits the prefill time that an extproc may report: a day.
const maxPrefillUs = 24 * 3600 * 1e6

// set records the backlog of an extproc at an endpoint, and marks it to be sent to all others. The
// caller holds mu.
func (l *backlogs) set(p *sentBacklogs, endpoint string, is sums, now time.Time) {
	all := l.shares[endpoint]
	at := slices.IndexFunc(all, func(s share) bool { return s.of == p })
	more := is.left(now)
	if at >= 0 {
		more -= all[at].left(now)
	}
	switch {
	case at < 0 && is.isEmpty():
		return
	case at < 0:
		l.shares[endpoint] = append(all, share{p, is})
	case !is.isEmpty():
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

// mark records that the sums of an endpoint have changed: the engine needs the additional time more
// for the prompts of the other extprocs. A negative time means that it needs less.
func (p *sentBacklogs) mark(endpoint string, more time.Duration, now time.Time) {
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

// take returns the backlogs to send to an extproc. The result is valid until the next call.
func (l *backlogs) take(p *sentBacklogs, now time.Time) []*placement.Backlog {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, of := range p.todo {
		of.todo = false
		is := l.others(p, of)
		if !of.sentAll.equals(&is, now) {
			of.sentAll = is
			if n == len(p.out) {
				p.out = append(p.out, new(placement.Backlog))
			}
			is.write(p.out[n], of.endpoint, now)
			n++
		}
		if of.sentAll.isEmpty() {
			delete(p.lines, of.endpoint)
		}
	}
	p.todo = p.todo[:0]
	return p.out[:n]
}

// others returns the sum of the backlogs of all other extprocs at the endpoint of a line. If they
// have no requests there, it resets the time until which their prompts last. The caller holds mu.
func (l *backlogs) others(p *sentBacklogs, of *line) (all sums) {
	for i := range l.shares[of.endpoint] {
		if s := &l.shares[of.endpoint][i]; s.of != p {
			all.requests += s.requests
			all.beside += s.beside
			all.urgency += s.urgency
			all.tokens += s.tokens
		}
	}
	if all.isEmpty() {
		of.through = time.Time{}
	}
	all.through = of.through
	return all
}

// write converts s to the Backlog b.
func (s *sums) write(b *placement.Backlog, endpoint string, now time.Time) {
	b.Endpoint, b.Requests, b.PrefillUs = endpoint, s.requests, uint64(s.left(now).Microseconds())
	b.BesidePs, b.Urgency, b.Tokens = s.beside, s.urgency, s.tokens
}
