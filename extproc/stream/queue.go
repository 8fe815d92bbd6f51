package stream

import (
	"context"
	"errors"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headgate/headgate/extproc/decisions/ring"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/fair"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// Only this file makes requests wait, so a new queue has to change only this file. After a request
// is admitted and before the policy chooses its endpoint, the request calls [dispatcher.enter].
// enter reports whether the request may continue. If it may not, or if it finds no endpoint, it
// calls [dispatcher.join]. [dispatcher.wait] then returns when the request was decided or its wait
// failed.

// queued is the state of a request that waits or has waited. It refers to no view of the fleet.
type queued struct {
	waits *waiting // nil unless the request waits now
	// hasTurn means that the request is the first in the queue for its model.
	hasTurn bool
	// work is the predicted service of a request that was dispatched in its turn.
	work flow.Service
	// since is when the request began to wait; zero if it never waited. spent is how long it has
	// waited.
	since time.Time
	spent time.Duration
	// overridden means that the data plane was asked to extend its timeout, which is possible once
	// per message.
	overridden bool
	// why is what the request waits or waited for.
	why ring.Wait
	// asked means that control was already asked whether the request's model exists.
	asked bool
}

// waiting is what a request waits for, and how it continues.
type waiting struct {
	of    flow.Request
	model string        // name in the request
	bytes int64         // size of the request's body
	most  time.Duration // maximum wait, from queued.since
	// asks means that the request waits until control has answered whether its model exists.
	asks bool
	// decide decides the request again. refuse replies with an error.
	decide func(now time.Time) responses
	refuse func(err error) responses
}

// notReady means that no copy of the model can serve the request now, but that a copy may serve it
// later.
type notReady struct {
	of  flow.Request // without the size of its body
	why error
}

func (m *notReady) Error() string { return m.why.Error() }
func (m *notReady) Unwrap() error { return m.why }

// isMiss reports whether an error of package pick may resolve itself: when the model is loaded, or
// when another request ends.
func isMiss(err error) bool {
	return errors.Is(err, pick.ErrNotAddressable) || errors.Is(err, pick.ErrNoneReady) || errors.Is(err, pick.ErrFull)
}

// placed reports whether control loads and evicts the model of the request.
func (d *dispatcher) placed() bool { return d.server.placing() && d.target.Adapter != "" }

// queueRequest returns how the request waits, if it has to. Model is the client's name of the
// model.
func (d *dispatcher) queueRequest(model string) flow.Request {
	r := flow.Request{
		Key: objects.ModelKey{Pool: d.target.Pool, ID: d.target.Adapter}, Placed: d.placed(),
		Path: fair.Path{Band: d.target.Priority, Route: d.target.Route, Share: 1},
	}
	if d.target.Open {
		r.Key.ID = model
	}
	return r
}

// failure returns why the model of a waiting request cannot be loaded now; nil if it can be, or if
// control does not load it.
func (s *Server) failure(r *flow.Request) error {
	if !r.Placed {
		return nil
	}
	return s.Flow.Failure(r.Key)
}

// enter returns nil if an admitted request may continue. It returns notReady if earlier requests
// wait for the same model. Model is the client's name of the model.
func (d *dispatcher) enter(model string) error {
	if !d.placed() || d.hasTurn {
		return nil
	}
	if r := d.queueRequest(model); d.server.Flow.Busy(&r) {
		return &notReady{r, pick.ErrNotAddressable}
	}
	return nil
}

// full reports whether the model of a waiting request has copies. All of them are then at their
// concurrency limit or reserved for earlier requests.
func (d *dispatcher) full() bool {
	key := d.waits.of.Key
	has, _ := d.server.Fleet.View().Snapshot.Pools[key.Pool.String()].Has(key.ID)
	return has
}

// taken returns the error of a request whose chosen copy was removed in each attempt. Model is the
// client's name of the model.
func (d *dispatcher) taken(model string) error {
	if d.placed() {
		return &notReady{d.queueRequest(model), pick.ErrNotAddressable}
	}
	return pick.ErrNotAddressable
}

// join makes a request wait if it may succeed later, and returns whether it waits. Join sets the
// fields of w that state what the request waits for.
func (d *dispatcher) join(err error, model string, w waiting, now time.Time) bool {
	var m *notReady
	switch {
	case errors.As(err, &m):
		w.of, w.most, d.why = m.of, d.patience(), ring.WaitForModel
		w.of.Bytes = w.bytes
	case d.mayBeNew(err, model):
		w.asks, d.asked, d.why = true, true, ring.WaitToAsk
	default:
		return false
	}
	if d.since.IsZero() {
		d.since = now
	}
	d.dropPicks()
	w.model, d.waits = model, &w
	return true
}

// askLimit limits how long a request waits for control to confirm a new model. It is less than 200
// ms, the default of Envoy's message_timeout.
const askLimit = 150 * time.Millisecond

// mayBeNew reports whether a model that nothing admits may have been added to control a moment ago.
func (d *dispatcher) mayBeNew(err error, model string) bool {
	if d.asked || !d.server.placing() || model == "" || openai.CheckName(model) != nil {
		return false
	}
	unknown := errors.Is(err, route.ErrUnknownModel) || errors.Is(err, pick.ErrUnlisted) || errors.Is(err, errNoVModel)
	return unknown && d.server.Fleet.Answers()
}

// askControl waits until this process has all that control has published, for at most askLimit.
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

// patience returns how long the request may wait: the pool's queue timeout, or less if the deadline
// of the pool or of the client is earlier.
func (d *dispatcher) patience() time.Duration {
	most := d.settings.QueueTimeout
	for _, d := range []time.Duration{d.settings.Request, d.in.deadline()} {
		if d > 0 {
			most = min(most, d)
		}
	}
	return most
}

// left returns the time until the request's deadline; 0 if the data plane enforces the deadline or
// there is none.
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

// again decides a waiting request once more. itsTurn means that the request is the first in its
// queue, so that it need not wait behind others.
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

// early returns how long before the data plane's timeout extproc must refuse a waiting request.
func early(most time.Duration) time.Duration { return min(time.Second, most/10) }

// override returns the message that extends the data plane's timeout. It returns nil if the timeout
// is already extended, and for bodies in chunks, which have no timeout.
func (d *dispatcher) override() *extprocv3.ProcessingResponse {
	if d.overridden || d.scope.mode == modeDuplex {
		return nil
	}
	d.overridden = true
	return &extprocv3.ProcessingResponse{OverrideMessageTimeout: durationpb.New(d.waits.most)}
}

// wait blocks until a request that called join is decided or refused, and returns the answers. It
// returns an error if the request ended meanwhile, which cancels ctx. If the request waits again
// afterwards, it waits for another model. The function send sends a message to the data plane.
func (d *dispatcher) wait(ctx context.Context, send func(*extprocv3.ProcessingResponse) error) (responses, error) {
	w, s := d.waits, d.server
	began := time.Now()
	result := metrics.QueueReleased
	wait := s.Meter.Enqueued(d.full(), began)
	if d.full() {
		d.why = ring.WaitAtLimit
	}
	defer func() { wait.Ended(result, time.Now()) }()
	ticket, err := s.Flow.Enqueue(w.of, began)
	switch {
	case errors.Is(err, flow.ErrFull):
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
			if errors.Is(failed, flow.ErrFull) { // another request has taken its place
				result = metrics.QueueFull
				return d.refuse(failed), nil
			}
			// If the model failed to load, the request is decided once more all the same: its
			// VModel may have another target now.
			out := d.again(failed == nil, time.Now())
			if d.waits != nil && d.waits.of.SameLine(ticket.Request()) {
				if failed == nil {
					wait.Goes(d.full(), time.Now())
					ticket.Back(flow.Copy)
					continue
				}
				out = d.refuse(failed)
			}
			switch {
			case d.inFlight != nil:
				charge(d, ticket)
			case failed != nil && d.waits == nil:
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

// charge charges the request's flow for the service of a request that was dispatched while others
// waited.
func charge(d *dispatcher, ticket *flow.Ticket) {
	if c := ticket.Dispatch(d.work, d.begunAt); c != nil {
		d.inFlight.OnEnd(func(completion int64) { c.Ended(completion, time.Now()) })
	}
}

// serviceOf returns the predicted service of a decided request: seconds of engine time. While times
// cannot be predicted it is tokens, of which a generated one counts twice. Without tokens it is the
// service time of the model.
func serviceOf(d *dispatcher) flow.Service {
	is, demand := &d.first().Estimate, &d.demanded
	switch {
	case d.traits.tokenless:
		return flow.Service{Fixed: max(float64(demand.ServiceTime)*1e-9, leastService)}
	case is.Step > 0 && !d.unpredicted:
		return flow.Service{
			Fixed: is.Load + is.Delay, PerToken: is.Longer, Tokens: float64(demand.Output),
			FirstToken: time.Duration(is.FirstToken() * float64(time.Second)), Step: time.Duration(is.Step * float64(time.Second)),
		}
	}
	return flow.Service{Fixed: float64(max(1, demand.Prompt)), PerToken: 2, Tokens: float64(demand.Output)}
}

// leastService is the service of a request without tokens whose service time is unknown, in
// seconds.
const leastService = 1e-3
