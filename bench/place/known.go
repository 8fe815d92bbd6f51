package place

// known places copies with full knowledge of the load. Each model gets one copy; then the model
// with the highest load per copy gets another, as long as there is room. Copies are assigned in
// order of load, largest first, to the endpoint with the least load. Nothing moves after the start,
// and requests for models without room fail.
type known struct {
	*Fleet
	rate []float64
	load []float64 // load by endpoint
}

// Known is the policy that places copies by the known load of each model.
func Known() Policy { return &known{} }

// Start places all copies.
func (k *known) Start(f *Fleet) {
	k.Fleet, k.rate, k.load = f, f.rate(f.Warmup), make([]float64, len(f.Nodes))
	f.clear()
	room := int64(f.Endpoints) * f.Capacity
	copies := make([]int, f.Models)
	byCopy := make([]float64, f.Models)
	for _, model := range ranked(k.rate) {
		if f.Size[model] <= room {
			copies[model], byCopy[model] = 1, k.rate[model]
			room -= f.Size[model]
		}
	}
	for {
		most := -1
		for model, n := range copies {
			if n > 0 && n < f.Endpoints && f.Size[model] <= room && (most < 0 || byCopy[model] > byCopy[most]) {
				most = model
			}
		}
		if most < 0 {
			break
		}
		copies[most]++
		byCopy[most] = k.rate[most] / float64(copies[most])
		room -= f.Size[most]
	}
	for _, model := range ranked(byCopy) {
		for range copies[model] {
			k.put(model, byCopy[model])
		}
	}
}

// put loads a model on the endpoint with the least load among those with room.
func (k *known) put(model int, load float64) {
	best := -1
	for e := range k.Nodes {
		if k.Nodes[e].Up && k.At(model, e) == nil && k.Room(e) >= k.Size[model] && (best < 0 || k.load[e] < k.load[best]) {
			best = e
		}
	}
	if best >= 0 {
		k.load[best] += load
		k.Load(model, best)
	}
}

// Request rejects the request if its model has no copy.
func (k *known) Request(model int, missing bool) {
	if missing {
		k.Refuse(model)
	}
}

// Ready implements [Policy].
func (k *known) Ready(*Copy) {}

// Gone implements [Policy].
func (k *known) Gone(*Copy) {}

// Joined implements [Policy].
func (k *known) Joined(int) {}

// Left loads models elsewhere that had copies only on the removed endpoint.
func (k *known) Left(int) {
	for _, model := range ranked(k.rate) {
		if len(k.Copies[model]) == 0 {
			if k.put(model, k.rate[model]); len(k.Copies[model]) == 0 {
				k.Refuse(model)
			}
		}
	}
}
