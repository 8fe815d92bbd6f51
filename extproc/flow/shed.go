package flow

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow/late"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/internal/objects"
)

// Late means that the request is predicted to wait longer than [Request.Longest]. Retry is the time
// after which its client should retry, above 0 and at most a minute.
type Late struct{ Retry time.Duration }

func (l Late) Error() string {
	return fmt.Sprintf("the request would be late; retry after %v", l.Retry)
}

// wouldBeLate predicts whether a request that is about to join the queue would be late. Service is
// that of the request. A request that waits for a load or an endpoint is never late, because such
// waits are not predicted.
func (p *pool) wouldBeLate(r *Request, service float64, is verdict, now time.Time) (retry time.Duration, tooLate bool) {
	if r.Longest <= 0 || p.queue.Len() == 0 {
		return 0, false
	}
	a, predicted := p.arrival(r, service, is)
	if !predicted {
		return 0, false
	}
	return p.late.Check(a, now, rand.Float64())
}

// arrival returns what the prediction of a request's wait depends on. It returns false if the wait
// is not predicted.
func (p *pool) arrival(r *Request, service float64, is verdict) (a late.Arrival, predicted bool) {
	l := p.lines[r.line()]
	if l == nil {
		l = &line{name: r.line(), key: r.Key}
		switch is {
		case waits:
			l.mark(p.flow.View(), Copy)
		case empty:
			l.mark(p.flow.View(), Endpoint)
		}
	}
	if l.cold {
		return late.Arrival{}, false
	}
	_, part := p.queue.Ahead(queue.Request{Path: r.Path})
	a = late.Arrival{Group: l.group(r.Path), Service: l.predicted(r, service), Part: part, Longest: r.Longest, Identity: r.Identity}
	a.Ahead = p.late.Queued(a.Group)
	return a, true
}

// expected returns the expected service of a request before its endpoint is chosen, in the unit of
// the pool. It is at least that of one token.
func (p *pool) expected(r *Request) float64 {
	if is := p.unit.expected(&r.Service); is > 1 { // not NaN
		return min(is, queue.MaxService)
	}
	return 1
}

// mark records what the line waits for, as far as predictions of waits depend on it. It reports
// whether cold has changed.
func (l *line) mark(v *endpointstate.View, why Reason) (changed bool) {
	there, was := false, l.cold
	if why == Copy {
		there, _ = has(v, l.key)
	}
	l.limited, l.cold = there, why == Endpoint || why == Copy && !there
	return l.cold != was
}

// group returns the group in which a request of the line counts.
func (l *line) group(path queue.Path) late.Group {
	if l.limited {
		return late.Group{Path: path, Limited: l.name}
	}
	return late.Group{Path: path}
}

// predicted returns the service of a request in predictions of waits. Requests without tokens for a
// copy at its concurrency limit count equally: they wait for the same model, and its service time
// is unknown at first. If those that waited before it was known counted less than newcomers,
// newcomers would seem late.
func (l *line) predicted(r *Request, service float64) float64 {
	if l.limited && r.Service.PerToken == 0 {
		return 1
	}
	return service
}

// count counts a waiting request in the predictions of waits, unless its line is cold. It undoes
// that if the line has become cold.
func (p *pool) count(t *Ticket, now time.Time) {
	if t.counts == !t.line.cold {
		return
	}
	if t.counts = !t.counts; t.counts {
		t.group, t.predicted = t.line.group(t.request.Path), t.line.predicted(&t.request, t.service)
		p.late.Joined(t.group, t.predicted, now)
		return
	}
	p.late.Left(t.group, t.predicted, false, now)
}

// lateness predicts the waits in the queue of one pool.
type lateness struct {
	*late.Predictor
	expires bool // a timer will remove it from Flow.lates
}

// latenessOf returns the lateness for a new pool of that name. The caller holds mu.
func (f *Flow) latenessOf(name objects.Name) *lateness {
	l := f.lates[name]
	if delete(f.lates, name); l == nil {
		l = &lateness{Predictor: late.New()}
	}
	return l
}

// keepPromises keeps the predictor of a pool without requests until all its promises have expired.
// The caller holds mu.
func (f *Flow) keepPromises(name objects.Name, l *lateness) {
	if l.Forget(time.Now()); l.Idle() {
		delete(f.lates, name)
		return
	}
	f.lates[name] = l
	if l.expires {
		return
	}
	l.expires = true
	time.AfterFunc(late.MaxRetry+late.Grace+time.Second, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if l.expires = false; f.lates[name] == l {
			f.keepPromises(name, l)
		}
	})
}
