package estimate

// Coin says whether a query that is at the stage of an edge takes it.
func Coin(p *Pipeline, seed uint64, query, edge int) bool {
	return newWay(p).takes(seed, uint64(query), edge, &p.Edges[edge])
}

// DrawOf is the share that a batch whose first query this is takes of the times of a stage.
func DrawOf(seed uint64, query, stage int) float64 {
	return chance(seed, uint64(query), drawn+uint64(stage))
}
