package stream

import (
	"context"
	"errors"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// Requests wait in this file only; a new queue plugs in here. A request calls [dispatcher.enter]
// after it is admitted and before the policy chooses its endpoint. enter decides whether it may
// continue. A request that may not, or that found no endpoint, calls join. [dispatcher.wait] then
// returns when the request was decided in its turn, or when its wait ended otherwise.

// queued is the state of a request that waits or has waited. It holds no view of the fleet.
type queued struct {
	waits *waiting // nil while it does not wait
	// hasTurn means that the request is the first of those that wait for its model.
	hasTurn bool
	// since is when the request first waited, or zero; spent is how long it has waited.
	since time.Time
	spent time.Duration
	// overridden means that the data plane extended its timeout, which it does once per message.
	overridden bool
	// asked means that the request has asked control about its model.
	asked bool
}

// waiting is a request that waits now.
type waiting struct {
	key   objects.ModelKey
	bytes int64         // of its body
	most  time.Duration // since queued.since
	// asks means that the request waits for control to confirm whether its model exists.
	asks bool
	// decide decides the request again; refuse replies with an error.
	decide func(now time.Time) responses
	refuse func(err error) responses
}

// notReady means that no copy of the model can take the request now, but one may later.
type notReady struct {
	key objects.ModelKey
	why error
}

func (m *notReady) Error() string { return m.why.Error() }
func (m *notReady) Unwrap() error { return m.why }

// isMiss reports whether a load of the model or the end of another request may resolve an error of
// pick.
func isMiss(err error) bool {
	return errors.Is(err, pick.ErrNotAddressable) || errors.Is(err, pick.ErrNoneReady) || errors.Is(err, pick.ErrFull)
}

// placed reports whether control places the model of the request.
func (d *dispatcher) placed() bool { return d.server.Flow != nil && d.target.Adapter != "" }

// modelKey returns the model of the request, as control names it.
func (d *dispatcher) modelKey() objects.ModelKey {
	return objects.ModelKey{Pool: d.target.Pool, ID: d.target.Adapter}
}

// enter returns nil if an admitted request may continue, and a miss if earlier requests wait for
// its model.
func (d *dispatcher) enter() error {
	if d.placed() && !d.hasTurn && d.server.Flow.Busy(d.modelKey()) {
		return &notReady{d.modelKey(), pick.ErrNotAddressable}
	}
	return nil
}

// full reports whether copies of the model exist, all of them at their concurrency limit or
// reserved for earlier requests.
func (d *dispatcher) full() bool {
	w := d.waits
	has, _ := d.server.Fleet.View().Snapshot.Pools[w.key.Pool.String()].Has(w.key.ID)
	return has
}

// taken returns the error of a request whose copies went away in each attempt.
func (d *dispatcher) taken() error {
	if d.placed() {
		return &notReady{d.modelKey(), pick.ErrNotAddressable}
	}
	return pick.ErrNotAddressable
}

// join makes a request wait if it may be decided later, and returns false otherwise. join fills in
// what the request waits for.
func (d *dispatcher) join(err error, model string, w waiting, now time.Time) bool {
	var m *notReady
	switch {
	case errors.As(err, &m):
		w.key, w.most = m.key, d.patience()
	case d.mayBeNew(err, model):
		w.asks, d.asked = true, true
	default:
		return false
	}
	if d.since.IsZero() {
		d.since = now
	}
	d.dropPicks()
	d.waits = &w
	return true
}

// askLimit bounds how long a request waits for control to confirm a new model. It is below 200 ms,
// the default of Envoy's message_timeout.
const askLimit = 150 * time.Millisecond

// mayBeNew reports whether nothing admits the model, while control may have published it a moment
// ago.
func (d *dispatcher) mayBeNew(err error, model string) bool {
	if d.asked || d.server.Flow == nil || model == "" || openai.CheckName(model) != nil {
		return false
	}
	unknown := errors.Is(err, route.ErrUnknownModel) || errors.Is(err, pick.ErrUnlisted) || errors.Is(err, errNoVModel)
	return unknown && d.server.Fleet.Answers()
}

// askControl waits until everything that control has published is in force, for at most askLimit.
func (s *Server) askControl(ctx context.Context) error {
	answered, done, ok := s.Fleet.AskControl()
	if !ok {
		return errNotHeard
	}
	defer done()
	timer := time.NewTimer(askLimit)
	defer timer.Stop()
	select {
	case <-answered:
		return nil
	case <-timer.C:
		return errNotHeard
	case <-s.refusing:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// patience returns how long the request may wait: the pool's queue timeout, bounded by the
// deadlines of the pool and of the client.
func (d *dispatcher) patience() time.Duration {
	most := d.settings.QueueTimeout
	for _, d := range []time.Duration{d.settings.Request, d.in.deadline()} {
		if d > 0 {
			most = min(most, d)
		}
	}
	return most
}

// left returns the remaining time of the request, or 0 if the data plane enforces it.
func (d *dispatcher) left() time.Duration {
	whole := d.settings.Request
	if whole == 0 && d.spent > 0 {
		whole = d.in.deadline()
	}
	if whole == 0 {
		return 0
	}
	return max(whole-d.spent, time.Millisecond)
}

// again decides a waiting request once more. itsTurn means that it is the first in line, so that it
// need not queue behind others.
func (d *dispatcher) again(itsTurn bool, now time.Time) responses {
	w := d.waits
	d.waits, d.spent, d.hasTurn = nil, now.Sub(d.since), itsTurn
	defer func() { d.hasTurn = false }()
	return w.decide(now)
}

// refuse ends the wait of a request with an error.
func (d *dispatcher) refuse(err error) responses {
	w := d.waits
	d.waits = nil
	return w.refuse(err)
}

// early is how long before the data plane's timeout extproc refuses a waiting request.
func early(most time.Duration) time.Duration { return min(time.Second, most/10) }

// override returns the message that extends the data plane's timeout, or nil if it needs none:
// bodies in chunks have no timeout.
func (d *dispatcher) override() *extprocv3.ProcessingResponse {
	if d.overridden || d.scope.mode == modeDuplex {
		return nil
	}
	d.overridden = true
	return &extprocv3.ProcessingResponse{OverrideMessageTimeout: durationpb.New(d.waits.most)}
}

// wait blocks until a request that has joined is decided in its turn or refused, and returns the
// answers. It returns an error when the request is over, which cancels ctx. A request that still
// waits afterwards waits for another model. Send sends to the data plane.
func (d *dispatcher) wait(ctx context.Context, send func(*extprocv3.ProcessingResponse) error) (responses, error) {
	w, s := d.waits, d.server
	began := time.Now()
	result := metrics.QueueReleased
	wait := s.Meter.Enqueued(d.full(), began)
	defer func() { wait.Ended(result, time.Now()) }()
	ticket, err := s.Flow.Enqueue(w.key, w.bytes, began)
	switch {
	case errors.Is(err, queue.ErrFull):
		result = metrics.QueueFull
		return d.refuse(err), nil
	case err != nil:
		result = metrics.QueueFailed
		return d.refuse(err), nil
	}
	defer ticket.Leave()
	if len(ticket.Turn()) == 0 {
		if m := d.override(); m != nil {
			if err := send(m); err != nil {
				result = metrics.QueueCancelled
				return nil, err
			}
		}
	}
	timer := time.NewTimer(time.Until(d.since.Add(w.most - early(w.most))))
	defer timer.Stop()
	for {
		select {
		case failed := <-ticket.Turn():
			// If its model failed, it is not the request's turn; but a VModel may stand for another
			// model now.
			out := d.again(failed == nil, time.Now())
			if d.waits != nil && d.waits.key == ticket.Key() {
				if failed == nil {
					wait.Goes(d.full(), time.Now())
					ticket.Back()
					continue
				}
				out = d.refuse(failed)
			}
			if failed != nil && d.waits == nil && d.inFlight == nil {
				result = metrics.QueueFailed
			}
			return out, nil
		case <-s.refusing:
			result = metrics.QueueStopped
			return d.refuse(errStopping), nil
		case <-timer.C:
			result = metrics.QueueExpired
			if d.full() {
				return d.refuse(errBusy), nil
			}
			return d.refuse(errExpired), nil
		case <-ctx.Done():
			result = metrics.QueueCancelled
			return nil, ctx.Err()
		}
	}
}
