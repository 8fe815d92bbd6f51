package pick

// Expect adds to what each endpoint probably has of a request's prompt: cached is how many leading blocks this process knows of, by
// [Endpoint.Number], and hash is that of the prompt's beginning, of so many blocks. What nothing is known of may have been sent by others, and
// most likely to its best, which all processes find by rendezvous hashing among the endpoints that answer to the request's model: that endpoint
// counts as having as much of it as is known of prompts' beginnings in the mean, of which familiar is the share, 0 to 1. Where prompts have
// nothing in common, no endpoint is preferred for nothing. What Expect returns is in cached, where that is large enough. P may be nil.
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
