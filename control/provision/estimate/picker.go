package estimate

import (
	"sync/atomic"

	"github.com/headgate/headgate/extproc/pick"
)

// picker sends the queries of a stage to its replicas as extproc does requests without tokens.
type picker struct {
	snapshot *pick.Snapshot
	pool     *pick.Pool
	picks    []pick.Decision
	sent     int64
}

const poolName = "stage"

func newPicker(replicas int) *picker {
	pool := &pick.Pool{Endpoints: make([]pick.Endpoint, replicas)}
	for i := range pool.Endpoints {
		pool.Endpoints[i] = pick.Endpoint{Number: i, Backlog: new(pick.Backlog), Peers: new(pick.Peers), InFlight: new(atomic.Int64)}
		pool.Any = append(pool.Any, pick.Copy{Endpoint: i, Base: true, InFlight: new(pick.Count)})
	}
	return &picker{snapshot: &pick.Snapshot{Pools: map[string]*pick.Pool{poolName: pool}}, pool: pool, picks: make([]pick.Decision, 1)}
}

// pick says which replica a query goes to: it has been sent there then.
func (p *picker) pick(random uint64) (replica int) {
	all, err := pick.Pick(pick.Policy{Rule: pick.Latency}, p.snapshot, pick.Request{Pool: poolName, Random: random, Tokenless: true}, p.picks)
	if err != nil {
		panic(err) // every replica is healthy, always
	}
	c := all[0].Copy
	p.pool.Endpoints[c.Endpoint].InFlight.Add(1)
	c.InFlight.Add(1)
	p.sent++
	c.InFlight.Last.Store(p.sent) // a number does for a time: it is compared with others, and no two are the same
	return c.Endpoint
}

// ended says that a query has ended at a replica.
func (p *picker) ended(replica int) {
	p.pool.Endpoints[replica].InFlight.Add(-1)
	p.pool.Any[replica].InFlight.Add(-1)
}
