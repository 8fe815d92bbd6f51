package stream

import (
	"time"

	"github.com/headgate/headgate/extproc/decisions/ring"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/metrics"
)

// HeldIn returns a function for [metrics.Meter.ReportHeld] that reports the requests that wait in a
// flow.
func HeldIn(f *flow.Flow) func() []metrics.Held {
	return func() []metrics.Held {
		held := f.Held()
		all := make([]metrics.Held, len(held))
		for i, h := range held {
			all[i] = metrics.Held{
				Pool: h.Pool.String(), Band: h.Band, Reason: h.Reason.String(), Requests: h.Requests, Since: h.Since,
			}
		}
		return all
	}
}

// watch measures the wait of a request.
type watch struct {
	d     *dispatcher
	pool  string
	band  int32
	began time.Time
	// model measures the wait for a copy of the model; nil while the request waits for something
	// else.
	model *metrics.QueuedRequest
}

// watchWait begins to measure the wait of the request.
func watchWait(d *dispatcher, now time.Time) *watch {
	w := &watch{d: d, pool: d.pool, band: d.target.Priority, began: now}
	w.goes(now)
	return w
}

// queued notes what the request waits for in the queue. A request that had to join behind others
// may wait for its model, too.
func (w *watch) queued(t *flow.Ticket, now time.Time) {
	if reason := t.Reason(); reason != flow.Turn {
		w.d.why = waitFor(reason)
	}
	w.goes(now)
}

// goes notes what the request waits for, which may have changed.
func (w *watch) goes(now time.Time) {
	full := w.d.full()
	if w.d.why == ring.WaitForModel && full {
		w.d.why = ring.WaitAtLimit
	}
	switch why := w.d.why; {
	case why != ring.WaitForModel && why != ring.WaitAtLimit:
		w.modelEnded(metrics.QueueReleased, now)
	case w.model == nil:
		w.model = w.d.server.Meter.Enqueued(full, now)
	default:
		w.model.Goes(full, now)
	}
}

func (w *watch) modelEnded(outcome string, now time.Time) {
	if w.model != nil {
		w.model.Ended(outcome, now)
		w.model = nil
	}
}

// ended records the end of the wait. The outcome is one of the values for the label outcome in
// package metrics.
func (w *watch) ended(outcome string, now time.Time) {
	w.modelEnded(outcome, now)
	meter := w.d.server.Meter
	meter.Waited(w.pool, w.band, w.d.why.Reason(), now.Sub(w.began))
	switch outcome {
	case metrics.QueueFull, metrics.QueueExpired, metrics.QueueFailed, metrics.QueueStopped, metrics.QueueLate:
		meter.TurnedAway(w.pool, w.band, outcome)
	}
}
