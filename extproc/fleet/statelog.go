package fleet

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/objects"
)

// Limits of the lines about states of endpoints: a number at once, and one more in each interval.
const (
	linesPerEndpoint = 6
	endpointInterval = 30 * time.Second
	linesInAll       = 100
	allInterval      = 500 * time.Millisecond
	// summaryInterval is the minimum time between two lines that count the suppressed ones.
	summaryInterval = 10 * time.Second
)

// faultAge is how old an endpoint's latest error may be to be the reason for a change.
const faultAge = 30 * time.Second

// stateLog logs one line for each change of an endpoint's state. It suppresses lines of endpoints
// that flap, but always logs the last state of each endpoint in the end. It is not safe for
// concurrent use.
type stateLog struct {
	log        *slog.Logger
	members    map[memberKey]*memberLog
	all        bucket
	suppressed int // suppressed lines since the last summary
	summaryAt  time.Time
	waits      map[objects.Name]bool // pools for which waiting has logged a line
}

// memberKey is an endpoint as a member of one pool.
type memberKey struct {
	pool    objects.Name
	address string
}

// memberLog is what stateLog has logged about an endpoint.
type memberLog struct {
	lines      bucket
	logged     pick.State // state in the last line
	latest     endpointstate.Move
	pending    bool // whether latest was not logged
	suppressed int  // suppressed lines since the last line
}

// bucket counts the lines that may be logged at once.
type bucket struct {
	used int
	at   time.Time // time of the last refill
}

// refill frees one line for each interval that has passed.
func (b *bucket) refill(interval time.Duration, now time.Time) {
	if n := int(now.Sub(b.at) / interval); b.used == 0 || n >= b.used {
		b.used, b.at = 0, now
	} else if n > 0 {
		b.used, b.at = b.used-n, b.at.Add(time.Duration(n)*interval)
	}
}

// moved logs a change of state, now or later.
func (l *stateLog) moved(m endpointstate.Move, now time.Time) {
	key := memberKey{m.Pool, m.Address}
	e := l.members[key]
	if e == nil {
		if l.members == nil {
			l.members = make(map[memberKey]*memberLog)
		}
		e = &memberLog{logged: m.From}
		l.members[key] = e
	}
	e.latest, e.pending = m, m.To.State != e.logged
	if !e.pending || !l.logLatest(e, now) { // not pending: the endpoint is back in the state of its last line
		e.suppressed++
		l.suppressed++
	}
}

// flush logs suppressed states that still differ from the last line, as far as the limits allow. It
// also logs the number of suppressed lines. Call it once a second.
func (l *stateLog) flush(now time.Time) {
	for key, e := range l.members {
		if e.pending {
			l.logLatest(e, now)
		}
		if e.lines.refill(endpointInterval, now); !e.pending && e.lines.used == 0 {
			delete(l.members, key)
		}
	}
	if l.suppressed > 0 && now.Sub(l.summaryAt) >= summaryInterval {
		l.log.Warn("endpoints change their states often; some changes are not logged", "suppressed", l.suppressed)
		l.suppressed, l.summaryAt = 0, now
	}
}

// setWorld removes endpoints that are no longer in the objects.
func (l *stateLog) setWorld(w *objects.World) {
	if len(l.members) == 0 {
		return
	}
	rest := make(map[memberKey]*memberLog, len(l.members))
	for name, p := range w.Pools {
		for i := range p.Endpoints {
			key := memberKey{name, p.Endpoints[i].Address}
			if e := l.members[key]; e != nil {
				rest[key] = e
			}
		}
	}
	l.members = rest
}

// logLatest logs the latest state of an endpoint, and returns false if the limits do not allow it.
func (l *stateLog) logLatest(e *memberLog, now time.Time) bool {
	e.lines.refill(endpointInterval, now)
	l.all.refill(allInterval, now)
	if e.lines.used >= linesPerEndpoint || l.all.used >= linesInAll {
		return false
	}
	e.lines.used++
	l.all.used++
	m := e.latest
	args := []any{"endpoint", m.Address, "pool", m.Pool.String(), "was", e.logged.String()}
	if m.To.Reason != "" {
		args = append(args, "reason", string(m.To.Reason))
	}
	if f := m.Fault; m.To.State != pick.Healthy && !f.At.IsZero() && now.Sub(f.At) < faultAge {
		args = append(args, "kind", f.Kind)
		if f.Status != 0 {
			args = append(args, "status", f.Status)
		}
		for _, field := range [][2]string{{"error_type", f.Type}, {"error_code", f.Code}, {"error_message", f.Message}} {
			if field[1] != "" {
				args = append(args, field[0], field[1])
			}
		}
	}
	if e.suppressed > 0 {
		args = append(args, "suppressed", e.suppressed)
	}
	e.logged, e.pending, e.suppressed = m.To.State, false, 0
	l.log.Log(context.Background(), level(m.To), message(m.To.State), args...) //nolint:sloglint // one for each state
	return true
}

// waiting logs, once for each pool, that policy latency waits for measurements.
func (l *stateLog) waiting(view *endpointstate.View, used settings.Settings) {
	for name, p := range view.World.Pools {
		is := view.Snapshot.Pools[name.String()]
		if l.waits[name] || is == nil || is.Predictable || len(is.Endpoints) == 0 || used.For(p).Policy.Rule != pick.Latency {
			continue
		}
		if l.waits == nil {
			l.waits = make(map[objects.Name]bool)
		}
		l.waits[name] = true
		l.log.Info("policy latency waits for measurements: policy proposal decides until then", "pool", name.String())
	}
	maps.DeleteFunc(l.waits, func(name objects.Name, _ bool) bool { return view.World.Pools[name] == nil })
}

// level returns INFO for an endpoint that recovers, or that stops, sleeps or starts on request.
func level(s endpointstate.Standing) slog.Level {
	switch s.Reason {
	case "", endpointstate.Terminating, endpointstate.NotReady, endpointstate.EngineAsleep, endpointstate.NeverAnswered:
		return slog.LevelInfo
	default:
		return slog.LevelWarn
	}
}

func message(s pick.State) string {
	if s == pick.Healthy {
		return "endpoint is healthy again"
	}
	return "endpoint is " + s.String()
}
