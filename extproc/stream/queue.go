package stream

import (
	"context"
	"errors"
	"time"

	"github.com/headgate/headgate/extproc/decisions/ring"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/extproc/settings"
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
	// hasTurn means that the queue has called the request: others need not go first.
	hasTurn bool
	// work is the predicted service of a request that was dispatched in its turn. expects is the
	// service that was predicted when the wait began.
	work, expects flow.Service
	// answers is the key under which the length of the answer is learned; 0 if it is not learned.
	answers uint64
	// ticket is the request's place in the queue while it is decided in its turn; otherwise nil.
	ticket *flow.Ticket
	// overdue means that the request reserves room if it finds none.
	overdue bool
	// near is the address of the only endpoint that may serve the request; empty if any may.
	near string
	// since is when the request began to wait; zero if it never waited. spent is how long it has
	// waited.
	since time.Time
	spent time.Duration
	// empty is how long after since the request last waited for an endpoint; 0 if it never did.
	empty time.Duration
	// overridden means that the data plane was asked to extend its timeout, which is possible once
	// per message.
	overridden bool
	// promised is the timeout that the data plane was asked for, if overridden.
	promised time.Duration
	// why is what the request waits or waited for.
	why ring.Wait
	// asked means that control was already asked whether the request's model exists.
	asked bool
	// identity is a hash that the request has again when its client retries; 0 if there is none.
	identity uint64
}

// waiting is what a request waits for, and how it continues.
type waiting struct {
	of    flow.Request
	miss  *notReady     // why it waits
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
	// empty means that no endpoint may serve the request.
	empty bool
	// others means that the room of an endpoint belongs to another process now.
	others bool
	// due is when an endpoint may have room without any event; zero if it is unknown. reserve is
	// room that the request reserves; nil if it reserves none.
	due     time.Time
	reserve *pick.Reservation
}

// errTurn means that other requests of the pool go first.
var errTurn = errors.New("other requests wait in the pool")

// reason returns what the request waits for.
func (m *notReady) reason() flow.Reason {
	switch {
	case errors.Is(m.why, errTurn):
		return flow.Turn
	case errors.Is(m.why, pick.ErrNoRoom):
		return flow.Room
	case m.empty:
		return flow.Endpoint
	}
	return flow.Copy
}

// waitOf returns the record of what a request waits for.
func waitOf(m *notReady) ring.Wait {
	if m.others {
		return ring.WaitForTurn
	}
	return waitFor(m.reason())
}

// waitFor returns the record of a reason to wait.
func waitFor(r flow.Reason) ring.Wait {
	return [...]ring.Wait{
		flow.Turn: ring.WaitForTurn, flow.Endpoint: ring.WaitForEndpoint, flow.Copy: ring.WaitForModel, flow.Room: ring.WaitForRoom,
	}[r]
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
		Adapter: d.found.Adapter, Fallback: d.fallback.name != "", Class: classOf(d, model),
	}
	if d.target.Open {
		r.Key.ID = model
	}
	if !d.settings.Flow {
		return r // in order of arrival
	}
	world := d.server.Fleet.View().World
	of, band := d.target.Route, d.target.Priority
	if !r.Fallback && !world.Leads(of, d.target.Pool, d.found.Adapter) {
		// A Model or a VModel admits the request; it has no share, and edits need not reach it. All
		// such requests are in one band: the queue has one for each route.
		of, band = objects.Name{}, 0
	}
	sharing := world.SharingOf(of).Or()
	r.Path = queue.Path{
		Band: band, Route: of, Share: sharing.Share, Tenant: d.in.hashOf(sharing.TenantHeader),
		Program: d.in.hashOf(sharing.ProgramHeader),
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

// enter returns nil if an admitted request may continue. It returns notReady if other requests of
// the pool wait. If the pool's flow is off, only requests for the same model count.
func (d *dispatcher) enter(a *ask) error {
	f := d.server.Flow
	if f == nil || d.hasTurn || !f.Any() {
		return nil
	}
	switch {
	case gated(d, a):
		if f.Waits(d.target.Pool) && !empty(d, a) {
			return &notReady{of: d.queueRequest(a.model), why: errTurn}
		}
	case d.placed() && !d.settings.Flow:
		if r := d.queueRequest(a.model); f.Busy(&r) {
			return &notReady{of: r, why: pick.ErrNotAddressable}
		}
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
		return &notReady{of: d.queueRequest(model), why: pick.ErrNotAddressable}
	}
	return pick.ErrNotAddressable
}

// join makes a request wait if it may succeed later, and returns whether it waits. Join sets the
// fields of w that state what the request waits for.
func (d *dispatcher) join(err error, model string, w waiting, now time.Time) bool {
	var m *notReady
	switch {
	case errors.As(err, &m):
		w.of, w.most, d.why = m.of, d.patience(m.reason()), waitOf(m)
		w.of.Bytes, w.of.Longest, w.of.Identity, w.miss = w.bytes, longestWait(d), d.identity, m
		if d.ticket == nil { // else it is known already
			d.expects = expectedService(d, model, w.bytes)
		}
		w.of.Service = d.expects
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

// patience returns how long after queued.since the request may wait for a reason: for the timeout
// of empty pools, or for the queue timeout, which begins again after the pool was empty. It returns
// less if the deadline of the pool or of the client is earlier.
func (d *dispatcher) patience(why flow.Reason) time.Duration {
	most := d.empty + d.settings.QueueTimeout
	if why == flow.Endpoint {
		most = d.settings.EmptyTimeout
	}
	if d.scope.mode != modeDuplex {
		// A data plane ignores a request for more than its maximum, and ends the wait after 200 ms.
		most = min(most, max(d.server.Settings.QueueTimeout, settings.DefaultQueueTimeout))
	}
	if d.overridden {
		most = min(most, d.promised)
	}
	for _, d := range []time.Duration{d.settings.Request, d.in.deadline()} {
		if d > 0 {
			most = min(most, d)
		}
	}
	return most
}

// noteEmpty records until when the request with this ticket has waited for an endpoint.
func noteEmpty(d *dispatcher, ticket *flow.Ticket) {
	d.empty = max(d.empty, ticket.Empty().Sub(d.since))
}

// expires returns the time until a request that waits for a reason must be refused. It may be
// negative.
func (d *dispatcher) expires(why flow.Reason) time.Duration {
	most := d.patience(why)
	if why == flow.Endpoint && most == 0 {
		return d.expires(flow.Turn) // such requests are not queued, so this one waits for something else
	}
	before := early(most)
	if d.fallback.name != "" {
		before /= 2 // the wait for the fallback begins when the first wait ends
	}
	return time.Until(d.since.Add(most - before))
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

// again decides a waiting request once more. itsTurn means that the queue has called the request,
// so that it need not wait behind others.
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
func (d *dispatcher) override() *message {
	if d.overridden || d.scope.mode == modeDuplex {
		return nil
	}
	room := d.patience(flow.Room)
	d.promised = max(d.waits.most, room)
	if d.waits.miss.reason() == flow.Endpoint {
		// It may then wait for room, but the data plane may allow no more than --max-queue-time.
		d.promised = max(d.promised, min(d.waits.most+room, d.server.Settings.QueueTimeout))
	}
	d.overridden = true
	return &message{Timeout: d.promised}
}

// enqueue adds the request to its pool's queue. If it cannot wait, refused is the outcome of its
// wait for the metrics. It is a function of its own to keep the stack of wait small, which lasts as
// long as the request waits.
func enqueue(d *dispatcher, now time.Time) (ticket *flow.Ticket, refused string, err error) {
	ticket, err = d.server.Flow.Enqueue(d.waits.of, now)
	switch {
	case err == nil:
		return ticket, "", nil
	case errors.As(err, new(flow.Late)):
		return nil, metrics.QueueLate, err
	case errors.Is(err, flow.ErrFull):
		return nil, metrics.QueueFull, err
	}
	return nil, metrics.QueueFailed, err
}

// wait blocks until a request that called join is decided or refused, and returns the answers. It
// returns an error if the request ended meanwhile, which cancels ctx. If the request waits again
// afterwards, it waits for another model. The function send sends a message to the data plane.
func (d *dispatcher) wait(ctx context.Context, send func(*message) error) (responses, error) {
	w, s := d.waits, d.server
	began := time.Now()
	result := metrics.QueueReleased
	wait := watchWait(d, began)
	defer func() { wait.ended(result, time.Now()) }()
	ticket, refused, err := enqueue(d, began)
	if err != nil {
		result = refused
		return d.refuse(err), nil
	}
	defer ticket.Leave()
	wait.queued(ticket, began)
	timer := time.NewTimer(min(d.expires(w.miss.reason()), d.expires(flow.Turn), d.expires(flow.Endpoint)))
	defer timer.Stop()
	for {
		if len(ticket.Turn()) == 0 {
			if m := d.override(); m != nil {
				if err := send(m); err != nil {
					result = metrics.QueueCancelled
					return nil, err
				}
			}
		}
		select {
		case failed := <-ticket.Turn():
			if errors.Is(failed, flow.ErrFull) { // another request has taken its place
				result = metrics.QueueFull
				return d.refuse(failed), nil
			}
			// If the model failed to load, the request is decided once more all the same: its
			// VModel may have another target now.
			if failed == nil {
				d.ticket = ticket
			}
			noteEmpty(d, ticket)
			out := d.again(failed == nil, time.Now())
			d.ticket = nil
			if w := d.waits; w != nil && w.of.SameLine(ticket.Request()) && !errors.Is(failed, flow.ErrChanged) {
				if failed == nil {
					wait.goes(time.Now())
					timer.Reset(d.expires(w.miss.reason()))
					ticket.Back(w.miss.reason(), w.miss.due, w.miss.reserve)
					continue
				}
				out = d.refuse(failed)
			}
			switch {
			case d.inFlight != nil && d.target.Pool == ticket.Request().Key.Pool:
				charge(d, ticket)
			case failed != nil && d.waits == nil:
				result = metrics.QueueFailed
			}
			return out, nil
		case <-s.refusing:
			// The engine can queue a request that only waits for room: the gate is off now.
			if why := ticket.Reason(); why == flow.Room || why == flow.Turn {
				if out := d.again(true, time.Now()); d.waits == nil {
					return out, nil
				}
			}
			result = metrics.QueueStopped
			return d.refuse(errStopping), nil
		case <-timer.C:
			if len(ticket.Turn()) > 0 {
				continue // its turn has come at the last moment
			}
			noteEmpty(d, ticket)
			why := ticket.Reason()
			if why == flow.Turn { // the queue may be about to try it again
				why = d.waits.miss.reason()
			}
			if left := d.expires(why); left > 0 {
				timer.Reset(left)
				continue
			}
			result = metrics.QueueExpired
			switch {
			case why == flow.Endpoint:
				return d.refuse(pick.ErrNoneReady), nil
			case d.full():
				return d.refuse(errBusy), nil
			}
			return d.refuse(errExpired), nil
		case <-ctx.Done():
			result = metrics.QueueCancelled
			return nil, ctx.Err()
		}
	}
}
