package stream

import (
	"context"
	"errors"
	"strconv"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// held is what is known of a request that waits, or has waited, for its model, or for a copy of it to take another request. It keeps the request's body and no view of
// the fleet.
type held struct {
	waits *waiting // nil while it does not wait
	// hasTurn says that it is the request's turn among those that wait for the model.
	hasTurn bool
	// since is when it first waited, zero if it never did; spent is for how long it did.
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
	model string // as the client calls it
	bytes int64
	most  time.Duration // since held.since
	// asks says that it waits for control to say whether there is such a model.
	asks bool
	// resume decides it again.
	resume func(now time.Time) responses
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
func (x *exchange) placed() bool { return x.server.Flow != nil && x.target.Adapter != "" }

// unknown is why nobody serves a model: where control or engines have not said yet which models they know of, not that there is none.
func (x *exchange) unknown(err error) error {
	if !errors.Is(err, route.ErrUnknownModel) && !errors.Is(err, pick.ErrUnlisted) {
		return err
	}
	if x.server.Flow != nil && !x.server.Fleet.Heard() || x.unread() {
		return errNotHeard
	}
	return err
}

// wanted is the model that the request is for, as control knows it.
func (x *exchange) wanted() objects.ModelKey {
	return objects.ModelKey{Pool: x.target.Pool, ID: x.target.Adapter}
}

// overtakes says whether the request would go before others that wait for its model.
func (x *exchange) overtakes() bool {
	return x.placed() && !x.hasTurn && x.server.Flow.Busy(x.wanted())
}

// full says whether there are copies of the model that the request waits for, each with as many requests as it takes, or more before this one.
func (x *exchange) full() bool {
	w := x.waits
	has, _ := x.server.Fleet.View().Snapshot.Pools[w.key.Pool.String()].Has(w.key.ID)
	return has
}

// taken is what a request finds whose copies went away each time that it was decided.
func (x *exchange) taken() error {
	if x.placed() {
		return &miss{x.wanted(), pick.ErrNotAddressable}
	}
	return pick.ErrNotAddressable
}

// missed lets a request wait that may find a copy later, and replies to any other.
func (x *exchange) missed(err error, model string, bytes int, now time.Time, resume func(now time.Time) responses) responses {
	var m *miss
	waits := errors.As(err, &m)
	if !waits && !x.mayBeNew(err, model) {
		return x.fail(err, model)
	}
	if x.since.IsZero() {
		x.since = now
	}
	x.dropPicks()
	if !waits {
		x.asked, x.waits = true, &waiting{model: model, bytes: int64(bytes), asks: true, resume: resume}
		return nil
	}
	x.letGo() // what waits counts there
	x.waits = &waiting{key: m.key, model: model, bytes: int64(bytes), most: x.patience(), resume: resume}
	return nil
}

// askLimit bounds how long a request waits for control to say whether its model is new. It is below 200 ms, the default of Envoy's message_timeout.
const askLimit = 150 * time.Millisecond

// mayBeNew says whether the request failed because nothing admits its model, and control might have published it a moment ago.
func (x *exchange) mayBeNew(err error, model string) bool {
	if x.asked || x.server.Flow == nil || model == "" || openai.CheckName(model) != nil {
		return false
	}
	unknown := errors.Is(err, route.ErrUnknownModel) || errors.Is(err, pick.ErrUnlisted) || errors.Is(err, errNoVModel)
	return unknown && x.server.Fleet.Answers()
}

// ask waits until control confirms that all it published is in force, decides the request again, and returns the reply. It returns an error when the
// request is over. The request's body counts as buffered meanwhile.
func (p *processor) ask(messages extprocv3.ExternalProcessor_ProcessServer, x *exchange) (responses, error) {
	before, during := x.kept, int(x.waits.bytes)
	if x.call != nil {
		during += before // an incomplete message is not part of waits
	}
	err := x.keep(during)
	if err == nil {
		err = p.server.askControl(messages.Context())
		_ = x.keep(before)
	}
	switch {
	case err == nil:
		return x.again(time.Now()), nil
	case messages.Context().Err() != nil:
		return nil, err
	}
	return x.refuse(err), nil
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
func (x *exchange) patience() time.Duration {
	most := x.settings.Hold
	for _, d := range []time.Duration{x.settings.Request, x.stated()} {
		if d > 0 {
			most = min(most, d)
		}
	}
	return most
}

// stated is the deadline that the client gave for its request, 0 if it gave none.
func (x *exchange) stated() time.Duration {
	var d time.Duration
	if ms, err := strconv.ParseInt(x.in.header(wire.TimeoutHeader), 10, 64); err == nil && ms > 0 && ms < maxStated {
		d = time.Duration(ms) * time.Millisecond
	}
	if own := grpcTimeout(x.in.header("grpc-timeout")); own > 0 && (d == 0 || own < d) {
		d = own
	}
	return d
}

// maxStated bounds deadlines, in milliseconds: a day. Longer ones are none.
const maxStated = 24 * 60 * 60 * 1000

// grpcTimeout reads the header of that name: up to eight digits and a unit. What is none is 0.
func grpcTimeout(text string) time.Duration {
	if len(text) < 2 || len(text) > 9 {
		return 0
	}
	unit, ok := map[byte]time.Duration{
		'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
	}[text[len(text)-1]]
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	if !ok || err != nil || n > uint64(maxStated*time.Millisecond/unit) {
		return 0
	}
	return time.Duration(n) * unit
}

// left is what remains of the time for the request, 0 if the data plane knows it better.
func (x *exchange) left() time.Duration {
	whole := x.settings.Request
	if whole == 0 && x.spent > 0 {
		whole = x.stated()
	}
	if whole == 0 {
		return 0
	}
	return max(whole-x.spent, time.Millisecond)
}

// resume goes on with a request whose turn it is: it is decided, or waits again.
func (x *exchange) resume(now time.Time) responses {
	x.hasTurn = true
	defer func() { x.hasTurn = false }()
	return x.again(now)
}

// again decides a request that waits once more.
func (x *exchange) again(now time.Time) responses {
	w := x.waits
	x.waits, x.spent = nil, now.Sub(x.since)
	return w.resume(now)
}

// refuse ends the wait of a request with an error.
func (x *exchange) refuse(err error) responses {
	w := x.waits
	x.waits = nil
	return x.fail(err, w.model)
}

// early is how much sooner than the data plane gives up a request that waited in vain is answered.
func early(most time.Duration) time.Duration { return min(time.Second, most/10) }

// override asks the data plane to wait, nil where it needs not be asked: a body in chunks has no time limit there.
func (x *exchange) override() *extprocv3.ProcessingResponse {
	if x.overridden || x.mode == modeDuplex {
		return nil
	}
	x.overridden = true
	return &extprocv3.ProcessingResponse{OverrideMessageTimeout: durationpb.New(x.waits.most)}
}

// hold keeps a request until it has its turn and is decided, or ends otherwise, and returns what to say. It returns an error
// when the request is over. If it is still waiting then, it is for another model.
func (p *processor) hold(messages extprocv3.ExternalProcessor_ProcessServer, x *exchange) (out responses, err error) {
	w := x.waits
	if w.asks {
		return p.ask(messages, x)
	}
	began := time.Now()
	result := metrics.HoldReleased
	wait := p.server.Meter.HoldBegan(x.full(), began)
	defer func() { wait.Ended(result, time.Now()) }()
	ticket, err := p.server.Flow.Hold(w.key, w.bytes, began)
	switch {
	case errors.Is(err, queue.ErrFull):
		result = metrics.HoldFull
		return x.refuse(err), nil
	case err != nil:
		result = metrics.HoldFailed
		return x.refuse(err), nil
	}
	defer ticket.Leave()
	if len(ticket.Turn()) == 0 {
		if m := x.override(); m != nil {
			if err := messages.Send(m); err != nil {
				result = metrics.HoldCancelled
				return nil, err
			}
		}
	}
	timer := time.NewTimer(time.Until(x.since.Add(w.most - early(w.most))))
	defer timer.Stop()
	for {
		select {
		case failed := <-ticket.Turn():
			decide := x.resume
			if failed != nil {
				decide = x.again // not its turn, but a VModel may go to another model now
			}
			out := decide(time.Now())
			if x.waits != nil && x.waits.key == ticket.Key() {
				if failed == nil {
					wait.Goes(x.full(), time.Now())
					ticket.Back()
					continue
				}
				out = x.refuse(failed)
			}
			if failed != nil && x.waits == nil && x.inFlight == nil {
				result = metrics.HoldFailed
			}
			return out, nil
		case <-p.server.refusing:
			result = metrics.HoldStopped
			return x.refuse(errStopping), nil
		case <-timer.C:
			result = metrics.HoldExpired
			if x.full() {
				return x.refuse(errBusy), nil
			}
			return x.refuse(errExpired), nil
		case <-messages.Context().Done():
			result = metrics.HoldCancelled
			return nil, messages.Context().Err()
		}
	}
}
