package limits_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/lending"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/internal/objects"
)

// network is a simulation of several extprocs, a control and the connections between them. Messages
// take up to 300 ms in each direction.
type network struct {
	*testing.T
	seed    uint64
	random  *rand.Rand
	now     time.Duration
	control *lending.Lender // nil while it is away
	number  uint64
	nodes   []*node
	names   int

	running []running
	used    map[limitKey]*truth
	ticked  time.Duration
}

// node is one extproc.
type node struct {
	name    string
	book    *limits.Book
	member  *lending.Member // nil without a stream
	up      []message[*placement.LimitsReport]
	down    []message[*placement.LimitsUpdate]
	cut     time.Duration // no message arrives until then
	connect time.Duration // when it connects again
	report  time.Duration
}

type message[M any] struct {
	at time.Duration
	is M
}

type running struct {
	ticket *limits.Ticket
	book   *limits.Book
	end    time.Duration
	keys   []limitKey
}

type limitKey struct {
	route  string
	tenant int // -1: of the route
}

// truth is what all extprocs together admitted.
type truth struct {
	inFlight         int
	requests, tokens float64
	at               time.Duration
}

func newNetwork(t *testing.T, seed uint64, nodes int) *network {
	n := &network{T: t, seed: seed, random: rand.New(rand.NewPCG(seed, 1)), used: make(map[limitKey]*truth)}
	n.startControl()
	for range nodes {
		n.add()
	}
	return n
}

func (n *network) startControl() {
	n.number += 1 << 32
	n.control = lending.New(n.number, n.now)
	for _, x := range n.nodes {
		n.hangUp(x)
	}
}

// hangUp ends the stream of an extproc. It connects again later.
func (n *network) hangUp(x *node) {
	x.member, x.up, x.down = nil, nil, nil
	x.connect = max(n.now, x.cut) + n.upTo(2*time.Second)
}

func (n *network) upTo(d time.Duration) time.Duration {
	return time.Duration(n.random.Int64N(int64(d)))
}

func (n *network) add() *node {
	n.names++
	x := &node{name: fmt.Sprint("p", n.names), connect: n.now + n.upTo(time.Second)}
	x.book = limits.NewAt(func() time.Time { return time.Unix(1e9, 0).Add(n.now) })
	x.book.Shared()
	x.book.SetWorld(theWorld)
	n.nodes = append(n.nodes, x)
	return x
}

// has reports whether an extproc has a part of limits.
func (n *network) has(x *node) bool { return x.book.Report().GetProcesses() > 0 }

// step lets 10 ms pass.
func (n *network) step() {
	n.now += 10 * time.Millisecond
	for i := 0; i < len(n.running); {
		if r := n.running[i]; r.end <= n.now {
			r.ticket.End()
			for _, k := range r.keys {
				n.used[k].inFlight--
			}
			n.running[i] = n.running[len(n.running)-1]
			n.running = n.running[:len(n.running)-1]
			continue
		}
		i++
	}
	for _, x := range n.nodes {
		n.deliver(x)
	}
	if n.control != nil && n.now-n.ticked >= time.Second {
		n.ticked = n.now
		n.wake(n.control.Tick(n.now))
	}
}

// later returns when a message arrives: after those before it.
func later[M any](n *network, all []message[M]) time.Duration {
	at := n.now + n.upTo(300*time.Millisecond)
	if len(all) > 0 {
		at = max(at, all[len(all)-1].at)
	}
	return at
}

func (n *network) send(x *node) {
	x.report = n.now + 250*time.Millisecond
	x.up = append(x.up, message[*placement.LimitsReport]{later(n, x.up), x.book.Report()})
}

func (n *network) deliver(x *node) {
	if x.cut > n.now || n.control == nil {
		return
	}
	if x.member == nil {
		if n.now < x.connect {
			return
		}
		x.member = n.control.Join(x.name, n.now)
		x.book.Connect()
		n.send(x)
	}
	if n.now >= x.report {
		n.send(x)
	}
	for len(x.up) > 0 && x.up[0].at <= n.now {
		r := x.up[0].is
		x.up = x.up[1:]
		n.wake(n.control.Hear(x.member, r, n.now))
	}
	for len(x.down) > 0 && x.down[0].at <= n.now {
		u := x.down[0].is
		x.down = x.down[1:]
		if x.book.Hear(u) {
			n.send(x)
		}
	}
}

func (n *network) wake(all []*lending.Member) {
	for _, x := range n.nodes {
		if x.member != nil && slices.Contains(all, x.member) {
			if u := n.control.Update(x.member); u != nil {
				x.down = append(x.down, message[*placement.LimitsUpdate]{later(n, x.down), u})
			}
		}
	}
}

// limited are the limits of the simulation.
var limited = map[string]v1alpha1.RouteLimits{
	"one":    {Route: &v1alpha1.Limit{Concurrent: ptr.To[int32](1)}},
	"two":    {Route: &v1alpha1.Limit{Concurrent: ptr.To[int32](2)}},
	"many":   {Route: &v1alpha1.Limit{Concurrent: ptr.To[int32](40)}},
	"rate":   {Route: &v1alpha1.Limit{RequestsPerMinute: ptr.To[int32](5)}},
	"fast":   {Route: &v1alpha1.Limit{RequestsPerMinute: ptr.To[int32](300)}},
	"tokens": {Route: &v1alpha1.Limit{TokensPerMinute: ptr.To[int32](3000)}},
	"tenant": {
		Route:  &v1alpha1.Limit{RequestsPerMinute: ptr.To[int32](500)},
		Tenant: &v1alpha1.Limit{Concurrent: ptr.To[int32](1), RequestsPerMinute: ptr.To[int32](30)},
	},
}

// theWorld has the routes with these limits.
var theWorld = func() *objects.World {
	var s objects.Set
	for name, l := range limited {
		r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: "pool"}}
		r.Spec.Limits, r.Spec.TenantHeader = &l, "x-tenant-id"
		s.Routes = append(s.Routes, r)
	}
	return objects.Build(s)
}()

func sharingOf(route string) *objects.Sharing {
	return theWorld.SharingOf(objects.Name{Namespace: "ns", Name: route})
}

var names = []string{"one", "two", "many", "rate", "fast", "tokens", "tenant"}

// ask sends a request through an extproc, and checks that no limit is exceeded. It returns whether
// the request was admitted.
func (n *network) ask(x *node, route string, tenant int, lasts time.Duration) bool {
	s := sharingOf(route)
	tokens := int64(0)
	if limits.CountsTokens(s) {
		tokens = 1 + n.random.Int64N(300)
	}
	ticket, _ := x.book.Admit(objects.Name{Namespace: "ns", Name: route}, s, uint64(tenant+1)*0x9e3779b97f4a7c15, tokens)
	if ticket == nil {
		return false
	}
	keys := []limitKey{{route, -1}}
	n.count(x, keys[0], s.PerRoute, tokens)
	if s.PerTenant != (objects.Limit{}) {
		keys = append(keys, limitKey{route, tenant})
		n.count(x, keys[1], s.PerTenant, tokens)
	}
	n.running = append(n.running, running{ticket, x.book, n.now + lasts, keys})
	return true
}

// count counts an admitted request, and checks the limit. A rate is a bucket that holds a minute.
func (n *network) count(x *node, k limitKey, l objects.Limit, tokens int64) {
	is := n.used[k]
	if is == nil {
		is = &truth{at: n.now}
		n.used[k] = is
	}
	passed := (n.now - is.at).Minutes()
	is.at = n.now
	is.inFlight++
	is.requests = max(0, is.requests-passed*float64(l.RequestsPerMinute)) + 1
	is.tokens = max(0, is.tokens-passed*float64(l.TokensPerMinute)) + float64(tokens)
	const rounding = 1e-3
	if l.Concurrent > 0 && is.inFlight > int(l.Concurrent) ||
		l.RequestsPerMinute > 0 && is.requests > float64(l.RequestsPerMinute)+rounding ||
		l.TokensPerMinute > 0 && is.tokens > float64(l.TokensPerMinute)+rounding {
		n.Fatalf("seed %d: at %v, %s exceeds the limit of %v: %+v", n.seed, n.now, x.name, k, *is)
	}
}

// trouble lets something fail. Outages are shorter than what control and extprocs wait for, and one
// extproc that knows of the others comes back to a new control within 3 s. It returns the minimum
// time until the next trouble.
func (n *network) trouble() time.Duration {
	x := n.nodes[n.random.IntN(len(n.nodes))]
	switch n.random.IntN(8) {
	case 0, 1, 2: // a cut-off, after which the stream goes on or breaks
		if x.cut < n.now && n.has(x) {
			x.cut = n.now + n.upTo(25*time.Second)
			if n.random.IntN(2) == 0 {
				n.hangUp(x)
			}
		}
	case 3, 4: // an extproc ends suddenly; its requests go on
		if len(n.nodes) > 2 && x.cut < n.now {
			for i, o := range n.nodes {
				if o == x {
					n.nodes = append(n.nodes[:i:i], n.nodes[i+1:]...)
				}
			}
			n.add()
		}
	case 5:
		if len(n.nodes) < 5 {
			n.add()
		}
	case 6, 7: // control starts again, or another one takes its place
		for _, o := range n.nodes {
			if o.cut < n.now && n.has(o) {
				n.startControl()
				return 4 * time.Second
			}
		}
	}
	return 0
}

// In random histories with delays, cut-offs and restarts, the extprocs together never exceed a
// limit. When the trouble is over, every limit can be used through every extproc.
func TestExtprocsNeverExceedLimits(t *testing.T) {
	for seed := range uint64(20) {
		n := newNetwork(t, seed, 3)
		admitted := make(map[string]int)
		next := 20 * time.Second
		busy := make(map[string]int) // percent of steps in which a route gets a request
		for n.now < 4*time.Minute {
			if n.now >= next {
				next = n.now + n.trouble() + n.upTo(20*time.Second)
			}
			if n.random.IntN(500) == 0 {
				busy[names[n.random.IntN(len(names))]] = n.random.IntN(40)
			}
			n.step()
			for _, route := range names {
				if n.random.IntN(100) < busy[route] {
					x := n.nodes[n.random.IntN(len(n.nodes))]
					if n.ask(x, route, n.random.IntN(4), n.upTo(min(20*time.Second, 1<<n.random.IntN(15)*time.Millisecond))) {
						admitted[route]++
					}
				}
			}
		}
		n.settleDown(admitted)
	}
}

// settleDown checks that all limits are usable after the trouble, and that nothing is left.
func (n *network) settleDown(admitted map[string]int) {
	wait := func(d time.Duration) {
		for end := n.now + d; n.now < end; {
			n.step()
		}
	}
	wait(35 * time.Second)
	longest := time.Duration(0)
	for _, x := range n.nodes {
		for _, route := range []string{"one", "two"} {
			begin := n.now
			for held := 0; held < int(sharingOf(route).PerRoute.Concurrent); {
				if n.ask(x, route, 0, 10*time.Second) {
					held++
					continue
				}
				if wait(50 * time.Millisecond); n.now-begin > 3*time.Second {
					n.Fatalf("seed %d: %s cannot use the limit of %s", n.seed, x.name, route)
				}
			}
			longest = max(longest, n.now-begin)
			wait(10 * time.Second)
		}
	}
	x, got := n.nodes[0], 0
	wait(time.Minute)
	for end := n.now + 2*time.Minute; n.now < end; n.step() {
		if n.ask(x, "fast", 0, 10*time.Millisecond) {
			got++
		}
	}
	if got < 880 {
		n.Fatalf("seed %d: %d of 900 requests were admitted through one extproc", n.seed, got)
	}
	wait(4 * time.Minute)
	members, divisions := n.control.Size()
	if members != len(n.nodes) || divisions != 0 {
		n.Fatalf("seed %d: control remembers %d extprocs and %d limits", n.seed, members, divisions)
	}
	for _, x := range n.nodes {
		if is := x.book.Sweep(); is.InFlight+is.Loans+is.Tenants != 0 {
			n.Fatalf("seed %d: %s remembers %+v", n.seed, x.name, is)
		}
	}
	n.Logf("seed %d: admitted %v; limits usable after at most %v; %d of 900 through one extproc", n.seed, admitted, longest, got)
}
