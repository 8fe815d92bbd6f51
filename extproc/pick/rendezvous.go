package pick

// Expect adds an estimate of what other processes cached to cached, the leading blocks of the
// prompt that this process sent, by [Endpoint.Number]. It applies only if this process sent no part
// of the prompt anywhere.
//
// Other processes most likely sent the prompt to its rendezvous endpoint: the one that rendezvous
// hashing finds for hash, the hash of the first beginning blocks of the prompt. Expect assumes that
// this endpoint has the share familiar of those blocks, from 0 to 1: the mean share of prompt
// beginnings that were seen before. It returns cached, grown if necessary. P may be nil.
func (p *Pool) Expect(r Request, hash uint64, beginning int, familiar float64, cached []int32) []int32 {
	blocks := int32(float64(beginning) * familiar)
	if p == nil || blocks == 0 {
		return cached
	}
	for _, n := range cached {
		if n > 0 {
			return cached
		}
	}
	copies, err := p.admit(r)
	if err != nil {
		return cached
	}
	best, highest := -1, uint64(0)
	for i := range copies {
		e := &p.Endpoints[copies[i].Endpoint]
		if h := mix(hash^e.Hash, 0); e.State != Out && !e.Forgets && r.Only.Has(e.Address) && (best < 0 || h > highest) {
			best, highest = e.Number, h
		}
	}
	if best < 0 {
		return cached
	}
	for len(cached) <= best {
		cached = append(cached, 0)
	}
	cached[best] = blocks
	return cached
}
