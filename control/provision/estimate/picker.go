package estimate

import (
	"math"
	"sync/atomic"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/profile"
)

// picker chooses a replica for each query as extproc does. With an engine profile it uses predicted
// latency; otherwise it uses the rule for requests without tokens.
type picker struct {
	snapshot *pick.Snapshot
	pool     *pick.Pool
	copies   []pick.Copy // one for each replica, including removed ones
	leaving  []bool      // for each replica, whether it will be removed after its last query
	picks    []pick.Decision
	sent     int64
}

const poolName = "stage"

// noClaim is the claim of a query whose latency was not predicted.
var noClaim pick.Claim

func newPicker(replicas int, engine *profile.Profile) *picker {
	pool := &pick.Pool{Predictable: engine != nil}
	p := &picker{snapshot: &pick.Snapshot{Pools: map[string]*pick.Pool{poolName: pool}}, pool: pool, picks: make([]pick.Decision, 1)}
	for range replicas {
		p.grow(engine)
	}
	return p
}

// grow adds a replica and returns its number.
func (p *picker) grow(engine *profile.Profile) (replica int) {
	replica = len(p.copies)
	e := &pick.Endpoint{
		Number: replica, Profile: engine, Backlog: new(pick.Backlog), Peers: new(pick.Peers), Adapters: new(atomic.Int64),
		InFlight: new(atomic.Int64),
	}
	if engine != nil {
		e.KVTokens = int64(engine.Limits.KVBlocks) * int64(engine.Limits.BlockSize)
	}
	c := pick.Copy{Endpoint: replica, Base: true, InFlight: new(pick.Count)}
	c.InFlight.Last.Store(int64(replica) - math.MaxInt32) // replicas that have had no query are chosen first, in order
	p.pool.Endpoints, p.pool.Any, p.copies = append(p.pool.Endpoints, e), append(p.pool.Any, c), append(p.copies, c)
	p.leaving = append(p.leaving, false)
	return replica
}

// shrink removes the latest replica from the pool, so that it gets no new queries. It reports
// whether the replica still has queries.
func (p *picker) shrink() (busy bool) {
	last := len(p.pool.Any) - 1
	replica := p.pool.Any[last].Endpoint
	p.pool.Any = p.pool.Any[:last]
	busy = p.pool.Endpoints[replica].InFlight.Load() > 0
	p.leaving[replica] = busy
	return busy
}

// pick chooses the replica of a query without tokens, and increases the replica's number of
// queries.
func (p *picker) pick(random uint64) (replica int) {
	c := p.choose(pick.Request{Random: random, Tokenless: true}).Copy
	c.InFlight.Last.Store(p.sent) // a sequence number is used in place of a time, since only the order matters
	return c.Endpoint
}

// pickEngine chooses the engine of an LLM query and adds the query to the engine's backlog. The
// caller passes the returned claim to [picker.ended].
func (p *picker) pickEngine(random uint64, prompt, output int, now float64) (replica int, claim pick.Claim) {
	at := nanoseconds(now)
	d := p.choose(pick.Request{
		Turn: uint64(p.sent), Random: random,
		Demand: pick.Demand{Prompt: prompt, Output: output, Now: at},
	}) //nolint:gosec // from 0 on
	d.Endpoint.Backlog.Begin(d.Claim, at)
	return d.Copy.Endpoint, d.Claim
}

func (p *picker) choose(r pick.Request) *pick.Decision {
	r.Pool = poolName
	all, err := pick.Pick(pick.Policy{Rule: pick.Latency}, p.snapshot, r, p.picks)
	if err != nil {
		panic(err) // impossible: every replica is healthy
	}
	p.pool.Endpoints[all[0].Copy.Endpoint].InFlight.Add(1)
	all[0].Copy.InFlight.Add(1)
	p.sent++
	return &all[0]
}

// nanoseconds converts a simulation time in seconds to a time of package pick, which is above 0.
func nanoseconds(now float64) int64 { return int64(1e18) + int64(now*1e9) }

// ended removes a query from the counts of its replica; claim is the result of pickEngine. It
// reports whether this was the last query of a replica that is to be removed.
func (p *picker) ended(replica int, claim pick.Claim) (left bool) {
	e := p.pool.Endpoints[replica]
	last := e.InFlight.Add(-1) == 0
	left = last && p.leaving[replica]
	p.copies[replica].InFlight.Add(-1)
	if e.Profile == nil {
		return left
	}
	if e.Backlog.End(claim, last); last {
		e.Backlog.Idle()
	}
	return left
}
