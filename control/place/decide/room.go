package decide

import (
	"cmp"
	"slices"
	"time"
)

// reserve is what of a capacity in bytes is left free, so that a load can begin while what makes room for it is still being
// unloaded: a share of what the loads of an engine take at once (ModelMesh's unload buffer: half of it for one or two
// loads, a quarter for more; 1 % to 10 % of the capacity).
func (e *endpoint) reserve() int64 {
	share := int64(4)
	if e.Loads <= 2 {
		share = 2
	}
	return min(max(int64(e.Loads)*e.DefaultBytes/share, e.Bytes/100), e.Bytes/10)
}

// usable is what all models may take that are not on their way out, in bytes.
func (e *endpoint) usable() int64 { return e.Bytes - e.reserve() - e.leaked }

// occupied is what the copies for which keep is true take up.
func (e *endpoint) occupied(keep func(*Copy) bool) (models int, bytes int64) {
	counted := make(map[string]bool)
	for _, c := range e.copies {
		if keep(c) && !counted[c.ID] {
			counted[c.ID] = len(e.pools) > 1 // an endpoint in two pools has a model once, for both
			models++
			bytes += c.Bytes
		}
	}
	return models, bytes
}

// remains says whether a copy is not on its way out.
func (c *Copy) remains() bool { return c.State <= Loaded && !c.doomed }

// started says whether the engine has room to begin a load now, with everything in it that has not left yet.
func (e *endpoint) started(c *Copy) bool {
	models, bytes := e.occupied(func(o *Copy) bool { return o.State != Queued })
	switch {
	case e.Slots > 0 && models+1 > e.Slots:
		return false
	case e.Bytes > 0:
		return bytes+c.Bytes+e.leaked <= e.Bytes
	}
	return true
}

// place is an endpoint for a model, and what has to leave it first.
type place struct {
	e       *endpoint
	victims []*Copy
	// free is the share of the endpoint that would be free still, by what it has least of.
	free float64
	// busy says that a victim has requests, recent when the victims were used, the latest of them.
	busy   bool
	recent time.Time
	lot    uint64
}

// compare orders places: those with room, the most free first; then those whose victims have no requests; then those whose
// victims have been idle for the longest.
func (p *place) compare(o *place) int {
	needs := func(p *place) int { return min(len(p.victims), 1) }
	truth := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	if c := cmp.Or(needs(p)-needs(o), truth(p.busy)-truth(o.busy)); c != 0 {
		return c
	}
	if len(p.victims) > 0 {
		if c := p.recent.Compare(o.recent); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(o.free, p.free), cmp.Compare(p.lot, o.lot))
}

// choose finds a place for one more copy of a model, or says why there is none; the empty reason is that one is to come.
// Starved says that requests wait for it.
func (s *State) choose(m *model, starved bool, random func() uint64) (best *place, why Reason) {
	if m.Max > 0 {
		counted, going := 0, false
		for _, c := range m.copies {
			if s.endpoints[c.Endpoint].useful() {
				counted++
				going = going || !c.remains()
			}
		}
		switch {
		case counted >= m.Max && going:
			return nil, "" // when it is gone
		case counted >= m.Max:
			return nil, NoEndpoint
		}
	}
	if len(m.failures) >= maxFailures {
		return nil, m.whyFailed()
	}
	unknowns, reasons := 0, make(map[Reason]int) // unknowns may be places in a moment
	for _, e := range s.pools[m.Pool] {
		switch {
		case e.Is():
			reasons[NoEndpoint]++
			continue
		case e.state == unknown:
			unknowns++
			continue
		case m.copies[e.Address] != nil:
			if !m.copies[e.Address].remains() {
				unknowns++ // it can be loaded there again when it has left
			}
			continue
		case e.state == silent, e.state == down, m.unusable(e.Address):
			reasons[NoEndpoint]++
			continue
		case !e.CanLoad || m.BaseModel != "" && len(e.BaseModels) > 0 && !slices.Contains(e.BaseModels, m.BaseModel):
			reasons[CannotLoad]++
			continue
		case slices.ContainsFunc(m.failures, func(f Failure) bool { return f.Endpoint == e.Address }):
			reasons[LoadFailed]++
			continue
		}
		p, why := s.room(e, m, starved)
		switch {
		case p == nil && why == "":
			unknowns++
			continue
		case p == nil:
			reasons[why]++
			continue
		}
		p.lot = random()
		if best == nil || p.compare(best) < 0 {
			best = p
		}
	}
	if best != nil || unknowns > 0 {
		return best, ""
	}
	for _, why := range []Reason{LoadFailed, NoRoom, TooLarge, NoEndpoint, CannotLoad} {
		switch {
		case reasons[why] == 0:
		case why == LoadFailed:
			return nil, m.whyFailed()
		default:
			return nil, why
		}
	}
	return nil, NoEndpoint
}

// whyFailed is why loads of a model failed: what all engines say that were asked, if that is the same.
func (m *model) whyFailed() Reason {
	why := m.failures[0].Why
	for _, f := range m.failures {
		if f.Why != why {
			return LoadFailed
		}
	}
	return why
}

// unusable says whether somebody who wants the model can use no copy there.
func (m *model) unusable(address string) bool {
	for _, w := range m.wants {
		if slices.Contains(w.Unusable, address) {
			return true
		}
	}
	return false
}

// room makes room for a model at an endpoint, or says why it cannot.
func (s *State) room(e *endpoint, m *model, starved bool) (*place, Reason) {
	size := m.bytes
	if size == 0 {
		size = e.DefaultBytes
	}
	if e.Bytes > 0 && size > e.usable() {
		return nil, TooLarge
	}
	models, bytes := e.occupied((*Copy).remains)
	victims, models, bytes, fits := s.shrink(e, m, starved || s.there(m) < m.Min, models+1, bytes+size)
	p := &place{e: e, victims: victims, free: 1}
	for _, c := range victims {
		p.busy = p.busy || c.inFlight > 0
		if used := s.recency(c); used.After(p.recent) {
			p.recent = used
		}
	}
	if !fits {
		// What is loading or waited for now may leave in a moment.
		models, bytes = e.occupied(func(c *Copy) bool { return c.remains() && s.stays(c) })
		if starved && e.fits(models+1, bytes+size) {
			return nil, ""
		}
		return nil, NoRoom
	}
	if e.Slots > 0 {
		p.free = min(p.free, float64(e.Slots-models)/float64(e.Slots))
	}
	if e.Bytes > 0 {
		p.free = min(p.free, float64(e.usable()-bytes)/float64(e.Bytes))
	}
	return p, ""
}

// fits says whether so many models of so many bytes have room at an endpoint.
func (e *endpoint) fits(models int, bytes int64) bool {
	return (e.Slots == 0 || models <= e.Slots) && (e.Bytes == 0 || bytes <= e.usable())
}

// shrink is who has to leave an endpoint for a model until so many models of so many bytes fit there, how many are left then, and whether they
// fit: it may be that too few may leave.
func (s *State) shrink(e *endpoint, m *model, urgent bool, models int, bytes int64) (victims []*Copy, leftModels int, leftBytes int64, fits bool) {
	if fits = e.fits(models, bytes); fits {
		return nil, models, bytes, true
	}
	for _, c := range s.evictable(e, m, urgent) {
		victims = append(victims, c)
		models, bytes = models-1, bytes-c.Bytes
		if fits = e.fits(models, bytes); fits {
			break
		}
	}
	return victims, models, bytes, fits
}

// makeRoom has others leave for a queued copy where it has no room any more, because it, or another, turned out larger than it was taken for when
// it was given its place, or the endpoint smaller. Where too few may leave it gives its place up.
func (s *State) makeRoom(c *Copy, now time.Time) (todo []Action) {
	e, m := s.endpoints[c.Endpoint], s.models[c.Key]
	if c.State != Queued || c.cut || c.sizing || e.state != up {
		return nil
	}
	models, bytes := e.occupied((*Copy).remains)
	victims, _, _, fits := s.shrink(e, m, m.starved(s, c) || s.there(m) <= m.Min, models, bytes)
	if !fits {
		s.drop(c)
		return nil
	}
	for _, victim := range victims {
		todo = append(todo, s.dismiss(victim, now)...)
	}
	return todo
}

// evictable is the copies at an endpoint that may leave for a model, in the order in which they are to: those without
// requests first, then the least recently used. Where the model is not urgent, because no request waits for it and it has the copies that it
// must have, none leaves that was used as late as it: by what is said of both, not by when they came, so that of two that were preloaded the
// later one may put out the other.
func (s *State) evictable(e *endpoint, m *model, urgent bool) []*Copy {
	var all []*Copy
	for _, c := range e.copies {
		o := s.models[c.Key]
		switch {
		case !c.remains() || c.State == Loading || o == m || len(o.wants) > 0 || s.stays(c):
		case !urgent && !o.lastUsed.Before(m.lastUsed):
		default:
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *Copy) int {
		return cmp.Or(min(a.inFlight, 1)-min(b.inFlight, 1), s.recency(a).Compare(s.recency(b)), a.Compare(b.CopyKey))
	})
	return all
}

// stays says whether a copy may not leave for another model, whatever happens.
func (s *State) stays(c *Copy) bool {
	m := s.models[c.Key]
	return m.foreign || m.Pinned || s.there(m) <= m.Min
}

// recency is when a copy was last used, or came: what was loaded a moment ago is about to be used.
func (s *State) recency(c *Copy) time.Time {
	used := s.models[c.Key].lastUsed
	if c.State == Loaded && c.Since.After(used) {
		return c.Since
	}
	return used
}

// overfull is the copies that have to leave because a model turned out larger than it was taken for.
func (e *endpoint) overfull(s *State, m *model) (victims []*Copy) {
	if e.Bytes == 0 {
		return nil
	}
	_, bytes := e.occupied((*Copy).remains)
	victims, _, _, _ = s.shrink(e, m, true, 0, bytes) // it grew in bytes alone
	return victims
}
