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

// This file is where a request waits, and the one place for a queue to plug in. A request passes [dispatcher.enter] after it is admitted and before
// the policy chooses its endpoint: enter decides whether it may go now. A request that may not go, or that found no endpoint, joins, and
// [dispatcher.wait] returns when it was decided in its turn, or when its wait ended without that.

// queued is what is known of a request that waits, or has waited. It keeps the body of the request, and no view of the fleet.
type queued struct {
	waits *waiting // nil while it does not wait
	// hasTurn says that it is the request's turn among those that wait for the model.
	hasTurn bool
	// since is when it first waited, zero if it never did; spent is for how long it has waited.
	since time.Time
	spent time.Duration
	// overridden says that the data plane was asked to wait, which it can be once for each message.
	overridden bool
	// asked says that the request has asked control about its model.
	asked bool
}

// waiting is a request that waits now.
type waiting struct {
	key   objects.ModelKey
	bytes int64         // of its body
	most  time.Duration // since queued.since
	// asks says that it waits for control to say whether there is such a model.
	asks bool
	// decide decides it again, and refuse replies with an error.
	decide func(now time.Time) responses
	refuse func(err error) responses
}

// miss is a request that finds no copy of its model, or none that takes another request, but may find one later.
type miss struct {
	key objects.ModelKey
	why error
}

func (m *miss) Error() string { return m.why.Error() }
func (m *miss) Unwrap() error { return m.why }

// isMiss says whether an error of pick may pass when control loads the model, or another request ends.
func isMiss(err error) bool {
	return errors.Is(err, pick.ErrNotAddressable) || errors.Is(err, pick.ErrNoneReady) || errors.Is(err, pick.ErrFull)
}

// placed says whether the request is for a model that control places.
func (d *dispatcher) placed() bool { return d.server.Flow != nil && d.target.Adapter != "" }

// wanted is the model that the request is for, as control knows it.
func (d *dispatcher) wanted() objects.ModelKey {
	return objects.ModelKey{Pool: d.target.Pool, ID: d.target.Adapter}
}

// enter returns nil if an admitted request may go on to its endpoint, and a miss if others wait for its model that came before.
func (d *dispatcher) enter() error {
	if d.placed() && !d.hasTurn && d.server.Flow.Busy(d.wanted()) {
		return &miss{d.wanted(), pick.ErrNotAddressable}
	}
	return nil
}

// full says whether there are copies of the model that the request waits for, each with as many requests as it takes, or more before this one.
func (d *dispatcher) full() bool {
	w := d.waits
	has, _ := d.server.Fleet.View().Snapshot.Pools[w.key.Pool.String()].Has(w.key.ID)
	return has
}

// taken is what a request finds whose copies went away each time that it was decided.
func (d *dispatcher) taken() error {
	if d.placed() {
		return &miss{d.wanted(), pick.ErrNotAddressable}
	}
	return pick.ErrNotAddressable
}

// join has a request wait that may be decided later, and returns false for any other. W has everything but what the request waits for.
func (d *dispatcher) join(err error, model string, w waiting, now time.Time) bool {
	var m *miss
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

// askLimit bounds how long a request waits for control to say whether its model is new. It is below 200 ms, the default of Envoy's message_timeout.
const askLimit = 150 * time.Millisecond

// mayBeNew says whether the request failed because nothing admits its model, and control might have published it a moment ago.
func (d *dispatcher) mayBeNew(err error, model string) bool {
	if d.asked || d.server.Flow == nil || model == "" || openai.CheckName(model) != nil {
		return false
	}
	unknown := errors.Is(err, route.ErrUnknownModel) || errors.Is(err, pick.ErrUnlisted) || errors.Is(err, errNoVModel)
	return unknown && d.server.Fleet.Answers()
}

// askControl waits until all that control published is in force, for at most askLimit.
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

// patience is how long the request may wait: for as long as its pool lets it, and no longer than it may take.
func (d *dispatcher) patience() time.Duration {
	most := d.settings.Hold
	for _, d := range []time.Duration{d.settings.Request, d.in.deadline()} {
		if d > 0 {
			most = min(most, d)
		}
	}
	return most
}

// left is what remains of the time for the request, 0 if the data plane knows it better.
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

// again decides a request that waits once more. If it is the request's turn, it may go before those that wait.
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

// early is how much sooner than the data plane gives up a request that waited in vain is answered.
func early(most time.Duration) time.Duration { return min(time.Second, most/10) }

// override asks the data plane to wait, nil where it needs not be asked: a body in chunks has no time limit there.
func (d *dispatcher) override() *extprocv3.ProcessingResponse {
	if d.overridden || d.scope.mode == modeDuplex {
		return nil
	}
	d.overridden = true
	return &extprocv3.ProcessingResponse{OverrideMessageTimeout: durationpb.New(d.waits.most)}
}

// wait keeps a request that has joined until it is decided in its turn, or its wait ends otherwise, and returns what to say. It returns an error
// when the request is over, which ends ctx. If the request still waits afterwards, it is for another model. Send sends to the data plane.
func (d *dispatcher) wait(ctx context.Context, send func(*extprocv3.ProcessingResponse) error) (responses, error) {
	w, s := d.waits, d.server
	began := time.Now()
	result := metrics.HoldReleased
	wait := s.Meter.HoldBegan(d.full(), began)
	defer func() { wait.Ended(result, time.Now()) }()
	ticket, err := s.Flow.Hold(w.key, w.bytes, began)
	switch {
	case errors.Is(err, queue.ErrFull):
		result = metrics.HoldFull
		return d.refuse(err), nil
	case err != nil:
		result = metrics.HoldFailed
		return d.refuse(err), nil
	}
	defer ticket.Leave()
	if len(ticket.Turn()) == 0 {
		if m := d.override(); m != nil {
			if err := send(m); err != nil {
				result = metrics.HoldCancelled
				return nil, err
			}
		}
	}
	timer := time.NewTimer(time.Until(d.since.Add(w.most - early(w.most))))
	defer timer.Stop()
	for {
		select {
		case failed := <-ticket.Turn():
			// If its model failed it is not its turn, but a VModel may stand for another model now.
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
				result = metrics.HoldFailed
			}
			return out, nil
		case <-s.refusing:
			result = metrics.HoldStopped
			return d.refuse(errStopping), nil
		case <-timer.C:
			result = metrics.HoldExpired
			if d.full() {
				return d.refuse(errBusy), nil
			}
			return d.refuse(errExpired), nil
		case <-ctx.Done():
			result = metrics.HoldCancelled
			return nil, ctx.Err()
		}
	}
}
