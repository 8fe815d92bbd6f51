package estimate

// Coin reports whether a query that passes the start of an edge also takes the edge.
func Coin(p *Pipeline, seed uint64, query, edge int) bool {
	return newPath(p).takes(seed, uint64(query), edge, &p.Edges[edge])
}

// DrawOf returns the random quantile of the service time of a batch at a stage. query is the first
// query of the batch.
func DrawOf(seed uint64, query, stage int) float64 {
	return chance(seed, uint64(query), timeHash+uint64(stage))
}
