package flow

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/headgate/headgate/extproc/flow/fair"
	"github.com/headgate/headgate/internal/objects"
)

// Late means that the request would wait longer than its Longest. Retry is the time after which its
// client should retry, above 0 and at most a minute.
type Late struct{ Retry time.Duration }

func (l Late) Error() string {
	return fmt.Sprintf("the request would be late; retry after %v", l.Retry)
}

// wouldBeLate predicts whether a request that is about to join the queue would be late. All
// requests count equally, because their service is not known before an endpoint is chosen.
func (p *pool) wouldBeLate(r *Request, now time.Time) (retry time.Duration, late bool) {
	if r.Longest <= 0 || p.queue.Len() == 0 {
		return 0, false
	}
	_, part := p.queue.Ahead(fair.Request{Path: r.Path})
	a := arrival{Path: r.Path, service: 1, part: part, longest: r.Longest, identity: r.Identity}
	if f := p.late.flows[r.Path]; f != nil {
		a.ahead = f.service
	}
	return p.late.check(a, now, rand.Float64())
}

// latenessOf returns the lateness for a new pool of that name. The caller holds mu.
func (f *Flow) latenessOf(name objects.Name) *lateness {
	l := f.lates[name]
	if delete(f.lates, name); l == nil {
		l = newLateness()
	}
	return l
}

// keepPromises keeps the promises of a pool that has no requests any more until they have passed.
// The caller holds mu.
func (f *Flow) keepPromises(name objects.Name, l *lateness) {
	if l.forget(time.Now()); l.idle() {
		delete(f.lates, name)
		return
	}
	f.lates[name] = l
	if l.expires {
		return
	}
	l.expires = true
	time.AfterFunc(maxRetry+grace+time.Second, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if l.expires = false; f.lates[name] == l {
			f.keepPromises(name, l)
		}
	})
}
