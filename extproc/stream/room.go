package stream

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// This file decides when requests wait for room at engines, and what their flow is charged.

// classOf separates requests for the same model that do not find room at the same time: those that
// only some endpoints may serve, and those with another objective. Model is the client's name of
// the model.
func classOf(d *dispatcher, model string) string {
	var b strings.Builder
	if d.target.Adapter == "" && !d.target.Open {
		b.WriteString("base")
	}
	if model == "" {
		b.WriteString("any")
	}
	if !d.settings.Flow {
		return b.String()
	}
	for _, o := range d.target.Objectives {
		if o.Type == v1alpha1.OutputTokenLatency {
			b.WriteString(o.Latency.Value.Duration.String())
		}
	}
	if d.near != "" {
		b.WriteString(" at " + d.near)
	}
	if only := d.scope.hints.only.Hash(); only != 0 {
		b.WriteString(" among " + strconv.FormatUint(only, 36))
	}
	return b.String()
}

// gated reports whether the request waits while no engine can start it at once. Requests that need
// no engine time never wait: those for stored responses, those that only count tokens, and calls
// that run no inference. While the process stops, no request waits.
func gated(d *dispatcher, a *ask) bool {
	switch {
	case d.server.Flow == nil || !d.settings.Flow || d.search.id != "" || d.server.refuses():
		return false
	case openai.OnlyTokenizes(d.in.path):
		return false
	case d.traits.tokenless:
		return d.traits.runs
	}
	return !a.stored || a.model != ""
}

// gateOf returns the gate of a request, which may go only where an engine can start it at once. The
// gate is off for requests that do not wait.
func gateOf(d *dispatcher, a *ask, s *pick.Snapshot) pick.Gate {
	d.overdue = false
	if !gated(d, a) {
		return pick.Gate{}
	}
	g := pick.Gate{
		On: true, Band: d.target.Priority, Queue: pick.DefaultGateQueue, PerToken: pick.DefaultGatePerToken,
		Window: int64(d.settings.RequestsPerEndpoint),
	}
	if d.server.explains {
		peekGate(d, &g, s)
		return g
	}
	g.Closed = d.server.Flow.Turns.Closed(d.target.Pool, s.Pools[d.target.Pool.String()])
	if d.ticket != nil {
		is := d.ticket.Standing()
		g.Reserved, g.Holder, d.overdue = is.Reserved, is.Holder, is.Overdue
		g.Headroom = is.Headroom * pick.DefaultHeadroom
	}
	return g
}

// missed returns the error of a request for which the policy found no endpoint: notReady if it may
// wait.
func missed(d *dispatcher, a *ask, err error, s *pick.Snapshot, request *pick.Request, now time.Time) error {
	pool := s.Pools[request.Pool]
	m := &notReady{why: err}
	switch {
	case errors.Is(err, pick.ErrNoRoom) && d.server.explains:
		m.others = leavesRoom(d, s, request)
	case errors.Is(err, pick.ErrNoRoom):
		if at, known := pick.Opens(d.settings.Policy, s, *request); known {
			m.due = dueAt(at, request.Demand.Now, now)
		}
		at, others := d.server.Flow.Turns.Left(d.target.Pool, d.settings.Policy, s, *request, now)
		if !at.IsZero() && (m.due.IsZero() || at.Before(m.due)) {
			m.due = at
		}
		m.others = others
		if d.overdue {
			if r, found := pick.Reserve(d.settings.Policy, s, *request, request.Gate.Holder); found {
				m.reserve = &r
			}
		}
	case isMiss(err) && empty(d, a), errors.Is(err, pick.ErrNoneReady) && !d.placed() && holds(d, a):
		m.empty = true
	case request.FailClose && errors.Is(err, pick.ErrNoneReady) && flow.Empty(pool, true):
		return err
	case d.placed() && isMiss(err) && len(pool.Any) > 0:
	default:
		return err
	}
	if m.of = d.queueRequest(a.model); m.empty && m.of.Placed {
		m.of.Holds, m.of.Class = true, m.of.Class+" at none"
	}
	return m
}

// dueAt converts a time of the steady clock to one that can be compared with the wall clock, which
// may have been set since the process started. Steady is the time now on the steady clock. Both are
// in nanoseconds since 1970.
func dueAt(at, steady int64, now time.Time) time.Time { return now.Add(time.Duration(at - steady)) }

// holds reports whether the request may wait while no endpoint may serve it.
func holds(d *dispatcher, a *ask) bool { return d.settings.EmptyTimeout > 0 && gated(d, a) }

// empty reports whether the request waits because no endpoint may serve it, or load its model.
func empty(d *dispatcher, a *ask) bool {
	switch {
	case !holds(d, a):
		return false
	case d.placed():
		return d.server.Flow.Absent(objects.ModelKey{Pool: d.target.Pool, ID: d.target.Adapter})
	}
	pool := d.server.Fleet.View().Snapshot.Pools[d.target.Pool.String()]
	return flow.Empty(pool, d.target.Sharing.Or().FailClose)
}

// charge charges the request's flow for the service of a request that was dispatched while others
// waited.
func charge(d *dispatcher, ticket *flow.Ticket) {
	if c := ticket.Dispatch(d.work, d.begunAt); c != nil {
		if d.answers != 0 {
			c.Expect(d.number)
		}
		d.inFlight.OnEnd(func(completion int64) { c.Ended(completion, time.Now()) })
	}
}
