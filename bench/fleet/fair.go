package fleet

import (
	"slices"

	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/objects"
)

// Fair is extproc with its gate and its fair queue. Several pickers take turns.
func Fair(gate pick.Gate) Policy {
	return func(f Fleet, seed uint64) (Picker, error) {
		o := &fairOrder{queue: queue.New[*Request](), running: make(map[*Request]*running)}
		p, err := behind(gate, func() order { return o })(f, seed)
		if g, ok := p.(*gated); ok && f.Pickers > 1 && f.BacklogSync > 0 {
			g.turns = newTurning(f.Endpoints)
			o.served = func(band int32, seconds, now float64) {
				g.turns.pool.Serve(band, turns.Service{Seconds: seconds}, passed(now))
			}
		}
		return p, err
	}
}

// fairOrder is the order of package queue. Service is engine time, as extproc charges it.
type fairOrder struct {
	queue   *queue.Queue[*Request]
	running map[*Request]*running
	served  func(band int32, seconds, now float64) // nil if there is no other process
	order   []*running                             // the same in order of dispatch, and some that have ended
	passed  float64                                // time of the last pass over running, in seconds
}

// running is a request that was sent.
type running struct {
	account         *queue.Account[*Request]
	fixed, perToken float64 // engine seconds
	began           float64
	first, step     float64 // predicted time to first token, and time per token
	output          float64 // expected output tokens
	band            int32
	charged         float64 // engine seconds
	ended           bool
}

func (is *running) of(tokens float64) float64 { return is.fixed + is.perToken*tokens }

func (o *fairOrder) join(r *Request) {
	o.queue.Join(r, queue.Request{Path: pathOf(r), Model: r.Adapter})
}

// pathOf returns the flow of a request.
func pathOf(r *Request) queue.Path {
	path := queue.Path{Band: r.Client.Band, Route: objects.Name{Name: r.Client.Route}, Share: 1}
	if r.Client.Tenant != "" {
		path.Tenant = hash.Of(r.Client.Tenant)
	}
	if r.Client.Program != "" {
		path.Program = hash.Of(r.Client.Program)
	}
	return path
}

func (o *fairOrder) next() *Request {
	if p := o.queue.Next(); p != nil {
		return p.Waiter
	}
	return nil
}

func (o *fairOrder) take(s sent) {
	p, e := o.queue.Next(), &s.Estimate
	is := &running{
		fixed: e.Load + e.Delay, perToken: e.Longer, began: s.at, first: e.FirstToken(), step: e.Step, output: float64(s.output),
	}
	o.queue.SetService(p, is.of(is.output))
	is.account, is.band = o.queue.Dispatch(p), p.Waiter.Client.Band
	o.charge(is, is.of(is.output), s.at)
	o.running[p.Waiter] = is
	o.order = append(o.order, is)
}

// passInterval is the interval in seconds at which charges are raised, because answers run longer
// than expected.
const passInterval = 1

func (o *fairOrder) pass(now float64) {
	if now < o.passed+passInterval {
		return
	}
	o.passed = now
	o.order = slices.DeleteFunc(o.order, func(is *running) bool { return is.ended })
	for _, is := range o.order {
		if tokens := (now - is.began - is.first) / is.step; is.step > 0 && tokens > is.output {
			is.account.Charge(is.of(tokens))
			o.charge(is, is.of(tokens), now)
		}
	}
}

func (o *fairOrder) token(*Request) {}

// charge tells the other processes what a request has been charged.
func (o *fairOrder) charge(is *running, total, now float64) {
	if o.served != nil {
		o.served(is.band, total-is.charged, now)
	}
	is.charged = total
}

func (o *fairOrder) ended(r *Request) {
	if is := o.running[r]; is != nil {
		is.account.Settle(is.of(float64(r.Output)))
		o.charge(is, is.of(float64(r.Output)), o.passed)
		is.ended = true
		delete(o.running, r)
	}
}

func (o *fairOrder) len() int { return o.queue.Len() }
