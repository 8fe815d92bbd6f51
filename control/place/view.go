package place

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// View returns a snapshot. While it copies the state, no decisions are made. It sorts the copy
// afterwards.
func (p *Placer) View() decide.View {
	p.mu.Lock()
	v, world := p.state.View(time.Now()), p.world
	sites := make(map[string]decide.EndpointView, len(p.endpoints))
	for address, s := range p.endpoints {
		sites[address] = decide.EndpointView{Engine: string(cmp.Or(s.Kind, s.kind)), Fault: s.fault}
	}
	last := make(map[decide.Key]*decide.CallResult, len(p.answers))
	for key, all := range p.answers {
		last[key] = new(all[len(all)-1])
	}
	v.VModels = p.viewVModels()
	drains := maps.Clone(p.drains)
	p.mu.Unlock()

	for _, e := range world.Engines {
		if site, ok := sites[e.Address]; ok && e.Pod != (objects.Name{}) {
			site.Pod, site.Listed = e.Pod.String(), e.Listed
			sites[e.Address] = site
		}
	}
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		site := sites[e.Address]
		e.Engine, e.Fault, e.Pod, e.Listed = site.Engine, site.Fault, site.Pod, site.Listed
		_, e.Drained = drains[e.Address]
	}
	for i := range v.Models {
		key, _ := keyOf(v.Models[i].Pool, v.Models[i].ID)
		v.Models[i].Last = last[key]
	}
	for name := range world.Pools { // add pools without endpoints and models
		if !slices.ContainsFunc(v.Pools, func(q decide.PoolView) bool { return q.Name == name.String() }) {
			v.Pools = append(v.Pools, decide.PoolView{Name: name.String()})
		}
	}
	v.Sort()
	return v
}
