package fleet

import (
	"cmp"
	"slices"
)

// order is the order in which held requests may go.
type order interface {
	// join adds a request.
	join(r *Request)
	// next returns the first request, which stays; nil if there is none.
	next() *Request
	// take removes the request that next returned, because it was sent.
	take(s sent)
	// pass is called at times in seconds that rise.
	pass(now float64)
	// token and ended report a token and the end of a request that was taken.
	token(r *Request)
	ended(r *Request)
	len() int
}

// line is a first-in, first-out queue.
type line struct {
	all  []*Request
	head int
}

func (l *line) push(r *Request) { l.all = append(l.all, r) }
func (l *line) len() int        { return len(l.all) - l.head }

func (l *line) first() *Request {
	if l.len() == 0 {
		return nil
	}
	return l.all[l.head]
}

func (l *line) pop() {
	l.all[l.head] = nil
	if l.head++; l.head == len(l.all) {
		l.all, l.head = l.all[:0], 0
	}
}

// firstCome is the order of arrival. If ahead is set, requests for which it returns true go before
// all others.
type firstCome struct {
	ahead  func(Client) bool
	before line
	line
}

func (o *firstCome) of() *line {
	if o.before.len() > 0 {
		return &o.before
	}
	return &o.line
}

func (o *firstCome) join(r *Request) {
	if o.ahead != nil && o.ahead(r.Client) {
		o.before.push(r)
		return
	}
	o.push(r)
}

func (o *firstCome) next() *Request { return o.of().first() }
func (o *firstCome) take(sent)      { o.of().pop() }
func (o *firstCome) pass(float64)   {}
func (o *firstCome) token(*Request) {}
func (o *firstCome) ended(*Request) {}
func (o *firstCome) len() int       { return o.before.len() + o.line.len() }

// counters is VTC, the Virtual Token Counter (Sheng et al., OSDI 2024, algorithm 2) among tenants:
// next is the tenant with the lowest counter. A request adds its prompt tokens when it is sent,
// and twice each output token as it is produced. The counter of a tenant that returns is raised to
// the lowest counter of those that wait, or to that of the last tenant that was served.
type counters struct {
	tenants map[string]*counter
	order   []*counter // in order of their first requests
	last    *counter   // the last that became idle
	held    int
}

type counter struct {
	line
	tokens float64
}

// perOutputToken is the weight of an output token, and that of a prompt token is 1.
const perOutputToken = 2

func (o *counters) join(r *Request) {
	if o.tenants == nil {
		o.tenants = make(map[string]*counter)
	}
	c := o.tenants[r.Client.Tenant]
	if c == nil {
		c = new(counter)
		o.tenants[r.Client.Tenant] = c
		o.order = append(o.order, c)
	}
	if c.len() == 0 {
		if least := o.least(); least != nil {
			c.tokens = max(c.tokens, least.tokens)
		} else if o.last != nil {
			c.tokens = max(c.tokens, o.last.tokens)
		}
	}
	c.push(r)
	o.held++
}

// least returns the counter of the tenant whose request is next; nil if none waits.
func (o *counters) least() (least *counter) {
	for _, c := range o.order {
		if c.len() > 0 && (least == nil || c.tokens < least.tokens) {
			least = c
		}
	}
	return least
}

func (o *counters) next() *Request {
	if c := o.least(); c != nil {
		return c.first()
	}
	return nil
}

func (o *counters) take(sent) {
	c := o.least()
	c.tokens += float64(len(c.first().Prompt))
	c.pop()
	o.held--
	if c.len() == 0 {
		o.last = c
	}
}

func (o *counters) pass(float64)     {}
func (o *counters) token(r *Request) { o.tenants[r.Client.Tenant].tokens += perOutputToken }
func (o *counters) ended(*Request)   {}
func (o *counters) len() int         { return o.held }

// flows serves flows round robin, or the flow whose first request has waited longest. Higher bands
// go first.
type flows struct {
	strict bool // the longest wait goes first
	all    map[Client]*flow
	order  []*flow // by band, then in order of their first requests
	last   map[int32]int
	held   int
}

type flow struct {
	line
	band int32
}

func (o *flows) join(r *Request) {
	if o.all == nil {
		o.all, o.last = make(map[Client]*flow), make(map[int32]int)
	}
	k := Client{Tenant: r.Client.Tenant, Band: r.Client.Band}
	f := o.all[k]
	if f == nil {
		f = &flow{band: k.Band}
		o.all[k] = f
		o.order = append(o.order, f)
		slices.SortStableFunc(o.order, func(a, b *flow) int { return cmp.Compare(b.band, a.band) })
		clear(o.last)
	}
	f.push(r)
	o.held++
}

// turn returns the index of the flow whose request is next; -1 if none waits.
func (o *flows) turn() int {
	next := -1
	for i, f := range o.order {
		switch {
		case f.len() == 0:
		case next < 0:
			next = i
		case f.band != o.order[next].band:
			return next
		case o.strict:
			if f.first().At < o.order[next].first().At {
				next = i
			}
		default:
			last, ok := o.last[f.band]
			if ok && next <= last && i > last {
				next = i
			}
		}
	}
	return next
}

func (o *flows) next() *Request {
	if i := o.turn(); i >= 0 {
		return o.order[i].first()
	}
	return nil
}

func (o *flows) take(sent) {
	i := o.turn()
	o.last[o.order[i].band] = i
	o.order[i].pop()
	o.held--
}

func (o *flows) pass(float64)   {}
func (o *flows) token(*Request) {}
func (o *flows) ended(*Request) {}
func (o *flows) len() int       { return o.held }
