package fleet

import (
	"math"

	"github.com/headgate/headgate/extproc/pick"
)

// soonest is the shortest time until a timer of the gate, in seconds.
const soonest = 0.001

// patience is the time in seconds after which a request leaves all of the headroom.
const patience = 5

// tenantOf identifies the tenant of a request, without its program.
func tenantOf(r *Request) Client {
	return Client{Route: r.Client.Route, Tenant: r.Client.Tenant, Band: r.Client.Band}
}

// gated is extproc with its gate: it holds requests that find no room, in an order.
type gated struct {
	*headgate
	order order
	gate  pick.Gate
	wake  float64
	// waiting is the number of requests that are held, by tenant. As in extproc, a request leaves
	// headroom if others of its tenant wait, and all of it if it has waited for long.
	waiting map[Client]int
	turns   *turning // nil if there is no other process
}

// NoFlow is extproc's policy latency without flow: requests wait in the engines. Objectives are
// those that requests state.
func NoFlow(f Fleet, seed uint64) (Picker, error) {
	h := newHeadgate(pick.Latency, f, seed)
	h.asStated = true
	return h, nil
}

// behind returns the policy that holds requests behind a gate, in an order.
func behind(gate pick.Gate, ordered func() order) Policy {
	return func(f Fleet, seed uint64) (Picker, error) {
		h := newHeadgate(pick.Latency, f, seed)
		h.asStated = true
		return &gated{headgate: h, order: ordered(), gate: gate, waiting: make(map[Client]int)}, nil
	}
}

// FirstCome holds requests behind a gate, in order of arrival.
func FirstCome(gate pick.Gate) Policy {
	return behind(gate, func() order { return new(firstCome) })
}

// Ahead holds requests behind a gate. Those of clients for which ahead returns true go first. For
// the victims of a flood no order is better.
func Ahead(gate pick.Gate, ahead func(Client) bool) Policy {
	return behind(gate, func() order { return &firstCome{ahead: ahead} })
}

// VTC holds requests behind a gate, in the order of the Virtual Token Counter.
func VTC(gate pick.Gate) Policy {
	return behind(gate, func() order { return new(counters) })
}

func (g *gated) Hold(_ float64, r *Request) []Refusal {
	g.order.join(r)
	g.waiting[tenantOf(r)]++
	g.waits()
	return nil
}

func (g *gated) Next(now float64) (*Request, int) {
	g.order.pass(now)
	r := g.order.next()
	if r == nil {
		g.wake = math.Inf(1)
		if g.turns != nil {
			clear(g.turns.unused)
		}
		return nil, 0
	}
	for {
		gate := g.gate
		gate.Band = r.Client.Band
		if now < r.At+patience {
			gate.Headroom *= pick.HeadroomPart(g.waiting[tenantOf(r)] - 1)
		}
		if g.turns != nil {
			g.close(now, &gate)
		}
		to, opens, err := g.try(now, r, gate)
		switch {
		case err == nil:
			g.order.take(g.inFlight[r])
			if g.waiting[tenantOf(r)]--; g.waiting[tenantOf(r)] == 0 {
				delete(g.waiting, tenantOf(r))
			}
			g.waits()
			return r, to
		case g.turns == nil:
			g.wake = max(opens, now+soonest)
			return nil, 0
		case !g.offered(now):
			g.wake = max(min(opens, g.turns.wake), now+soonest)
			return nil, 0
		}
	}
}

func (g *gated) Wake(float64) float64 { return g.wake }

func (g *gated) Token(r *Request) { g.order.token(r) }

func (g *gated) Ended(now float64, r *Request, endpoint int) {
	g.order.ended(r)
	g.headgate.Ended(now, r, endpoint)
}
