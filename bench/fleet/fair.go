package fleet

import (
	"slices"

	"github.com/headgate/headgate/extproc/flow/fair"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/objects"
)

// Fair is extproc with its gate and its fair queue.
func Fair(gate pick.Gate) Policy {
	return behind(gate, func() order {
		return &fairOrder{queue: fair.New[*Request](), running: make(map[*Request]*running)}
	})
}

// fairOrder is the order of package fair. Service is engine time, as extproc charges it.
type fairOrder struct {
	queue   *fair.Queue[*Request]
	running map[*Request]*running
	order   []*running // the same in order of dispatch, and some that have ended
	passed  float64    // time of the last pass over running, in seconds
}

// running is a request that was sent.
type running struct {
	account         *fair.Account[*Request]
	fixed, perToken float64 // engine seconds
	began           float64
	first, step     float64 // predicted time to first token, and time per token
	output          float64 // expected output tokens
	ended           bool
}

func (is *running) of(tokens float64) float64 { return is.fixed + is.perToken*tokens }

func (o *fairOrder) join(r *Request) {
	path := fair.Path{Band: r.Client.Band, Route: objects.Name{Name: r.Client.Route}, Share: 1}
	if r.Client.Tenant != "" {
		path.Tenant = hash.Of(r.Client.Tenant)
	}
	if r.Client.Program != "" {
		path.Program = hash.Of(r.Client.Program)
	}
	o.queue.Join(r, fair.Request{Path: path, Model: r.Adapter})
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
	is.account = o.queue.Dispatch(p)
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
		}
	}
}

func (o *fairOrder) token(*Request) {}

func (o *fairOrder) ended(r *Request) {
	if is := o.running[r]; is != nil {
		is.account.Settle(is.of(float64(r.Output)))
		is.ended = true
		delete(o.running, r)
	}
}

func (o *fairOrder) len() int { return o.queue.Len() }
