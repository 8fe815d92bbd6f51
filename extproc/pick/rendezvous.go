package pick

// Expect estimates where other processes sent a prompt before. It does nothing if this process sent
// a part of the prompt anywhere. The slice cached contains the number of leading prompt blocks that
// this process sent to each endpoint, by [Endpoint.Number]. Expect returns the slice with the
// estimate added, grown if necessary. P may be nil.
//
// Other processes most likely sent the prompt to its rendezvous endpoint. Rendezvous hashing finds
// this endpoint from hash, a hash of the first blocks of the prompt. The argument beginning is the
// number of these blocks. The argument familiar is the mean share of such beginnings that was seen
// before, from 0 to 1. Expect assumes that the rendezvous endpoint has cached that share of the
// blocks.
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
		e := p.Endpoints[copies[i].Endpoint]
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
