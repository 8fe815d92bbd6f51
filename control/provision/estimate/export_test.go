package estimate

// Coin reports whether a query at the stage of an edge takes the edge.
func Coin(p *Pipeline, seed uint64, query, edge int) bool {
	return newPath(p).takes(seed, uint64(query), edge, &p.Edges[edge])
}

// DrawOf returns the quantile of the service time of the batch that a query leads.
func DrawOf(seed uint64, query, stage int) float64 {
	return chance(seed, uint64(query), timeHash+uint64(stage))
}
