package placementserver

import (
	"sync"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/place/lending"
)

// lender divides the limits of routes among the connected extprocs. It is safe for concurrent use.
// No other mutex is locked while its mutex is held.
type lender struct {
	began time.Time

	mu     sync.Mutex // guards the fields below
	limits *lending.Lender
	peers  map[*lending.Member]*peer
	ticked time.Time
}

func newLender() *lender {
	now := time.Now()
	return &lender{
		began: now, ticked: now, limits: lending.New(uint64(now.UnixNano()), 0), //nolint:gosec // after 1970
		peers: make(map[*lending.Member]*peer),
	}
}

// report records how an extproc uses limits. Extprocs that do not report that have equal parts.
func (l *lender) report(p *peer, r *placement.LimitsReport) {
	if r == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.began)
	if p.member == nil {
		p.member = l.limits.Join(p.process, now)
		l.peers[p.member] = p
	}
	l.wake(l.limits.Hear(p.member, r, now))
}

// tick does what time alone causes, at most twice a second.
func (l *lender) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.ticked) >= othersInterval/2 {
		l.ticked = now
		l.wake(l.limits.Tick(now.Sub(l.began)))
	}
}

// wake wakes the streams of extprocs for which there may be news. The caller holds mu.
func (l *lender) wake(all []*lending.Member) {
	for _, m := range all {
		if p := l.peers[m]; p != nil {
			p.wake()
		}
	}
}

// take returns what an extproc may use; nil if that is unchanged.
func (l *lender) take(p *peer) *placement.LimitsUpdate {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.member == nil {
		return nil
	}
	return l.limits.Update(p.member)
}

// part ends a stream. What its extproc holds is kept for a while, since it may still use it.
func (l *lender) part(p *peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.peers, p.member)
}
