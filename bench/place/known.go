package place

// known places copies by loads that it is told: each model has one, and those of the greatest load by copy have one more as long as there is
// room. Then copies go, those that bear most first, to the endpoint that bears least. Nothing is moved after the start, and what found no room
// fails.
type known struct {
	*Fleet
	rate  []float64
	bears []float64 // by endpoint
}

// Known is copies by known loads.
func Known() Policy { return &known{} }

// Start places all.
func (k *known) Start(f *Fleet) {
	k.Fleet, k.rate, k.bears = f, f.rate(f.Warmup), make([]float64, len(f.Nodes))
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

// put has a model loaded at the endpoint that bears least, of those that have room.
func (k *known) put(model int, bears float64) {
	best := -1
	for e := range k.Nodes {
		if k.Nodes[e].Up && k.At(model, e) == nil && k.Room(e) >= k.Size[model] && (best < 0 || k.bears[e] < k.bears[best]) {
			best = e
		}
	}
	if best >= 0 {
		k.bears[best] += bears
		k.Load(model, best)
	}
}

// Request has one fail whose model has no copy.
func (k *known) Request(model int, missing bool) {
	if missing {
		k.Refuse(model)
	}
}

// Ready and the others change nothing.
func (k *known) Ready(*Copy) {}

// Gone is nothing to it.
func (k *known) Gone(*Copy) {}

// Joined is nothing to it.
func (k *known) Joined(int) {}

// Left places those anew that have no copy any more.
func (k *known) Left(int) {
	for _, model := range ranked(k.rate) {
		if len(k.Copies[model]) == 0 {
			if k.put(model, k.rate[model]); len(k.Copies[model]) == 0 {
				k.Refuse(model)
			}
		}
	}
}
