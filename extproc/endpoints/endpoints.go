// Package endpoints converts the fleet's state to the answer to GET /endpoints. It is pure.
package endpoints

import (
	"cmp"
	"slices"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Fleet is the state of a fleet at one moment.
type Fleet struct {
	View      *endpointstate.View
	Endpoints []endpointstate.Status
	// Known are the learned profiles of the pools.
	Known []endpointstate.Known
	// FailOpen are the pools that use all endpoints because most are unhealthy.
	FailOpen []string
	// Held are the waiting requests of the pools.
	Held map[objects.Name][]admin.Held
	// Settings are for pools without settings of their own.
	Settings settings.Settings
}

// Of returns the state of the fleet as JSON types.
func Of(f Fleet, now time.Time) admin.EndpointsResult {
	r := admin.EndpointsResult{At: now, Pools: []admin.Pool{}, Endpoints: []admin.Endpoint{}}
	for name, p := range f.View.World.Pools {
		settings := f.Settings.For(p)
		rule := settings.Policy.Rule
		is := admin.Pool{
			Name: name.String(), Policy: rule.String(), FailOpen: slices.Contains(f.FailOpen, name.String()), Held: f.Held[name],
			HoldsWhileEmpty: settings.Flow && settings.EmptyTimeout > 0,
		}
		if snapshot := f.View.Snapshot.Pools[name.String()]; rule == pick.Latency && snapshot != nil && !snapshot.Predictable {
			is.Waiting = waiting(name, f.Known)
		}
		r.Pools = append(r.Pools, is)
	}
	slices.SortFunc(r.Pools, func(a, b admin.Pool) int { return cmp.Compare(a.Name, b.Name) })
	pods := make(map[string]objects.Engine, len(f.View.World.Engines))
	for _, e := range f.View.World.Engines {
		pods[e.Address] = e
	}
	all := slices.Clone(f.Endpoints)
	slices.SortStableFunc(all, func(a, b endpointstate.Status) int {
		return cmp.Or(cmp.Compare(a.Pool.String(), b.Pool.String()), cmp.Compare(a.Address, b.Address))
	})
	if r.Omitted = max(0, len(all)-admin.MaxEndpoints); r.Omitted > 0 {
		all = all[:admin.MaxEndpoints]
	}
	members := make(map[string]map[string]*member)
	for _, s := range all {
		pool := s.Pool.String()
		if members[pool] == nil {
			members[pool] = membersOf(f.View.Snapshot.Pools[pool])
		}
		m := members[pool][s.Address]
		if m == nil { // a newer view may lack the endpoint
			m = new(member)
		}
		e := endpoint(s, pods[s.Address], m)
		e.FirstTokenSeconds = m.firstToken(now)
		e.Adapters = m.adapters[:min(len(m.adapters), admin.MaxAdapters, maxAdapters/len(all))]
		r.Endpoints = append(r.Endpoints, e)
	}
	return r
}

// maxAdapters is the maximum number of adapters of all endpoints together.
const maxAdapters = 16_000

// waiting explains why the predictions for a pool are not trusted.
func waiting(pool objects.Name, known []endpointstate.Known) string {
	for _, k := range known {
		if k.Pool == pool && !k.Trusted && k.Why != "" {
			return k.Why
		}
	}
	return "no measurements yet"
}

// endpoint converts the state of an endpoint.
func endpoint(s endpointstate.Status, pod objects.Engine, m *member) admin.Endpoint {
	e := admin.Endpoint{
		Pool: s.Pool.String(), Address: s.Address, Engine: string(s.Kind), State: s.Standing.State.String(), Since: s.Standing.Since,
		Reason: string(s.Standing.Reason), InFlight: s.InFlight, Running: number(s.Load.Running), Waiting: number(s.Load.Waiting),
		KVUse: number(s.Load.KVUsage), Slots: int64(s.Load.MaxAdapters.Or(0)), Base: s.Base, AdapterCount: len(m.adapters),
	}
	if pod.Pod != (objects.Name{}) {
		e.Pod, e.Listed = pod.Pod.String(), pod.Listed
	}
	if f := s.Fault; !f.At.IsZero() {
		e.LastError = &admin.EndpointError{At: f.At, Kind: f.Kind, Status: f.Status, Type: f.Type, Code: f.Code}
	}
	for _, a := range m.adapters {
		if a.InFlight > 0 || slices.Contains(s.Load.Active, a.Name) {
			e.ActiveAdapters++
		}
	}
	return e
}

func number(v engine.Value) *float64 {
	n, known := v.Get()
	if !known {
		return nil
	}
	return &n
}

// member is what a pool's snapshot has of one endpoint.
type member struct {
	alone    *pick.Snapshot  // a snapshot with a pool that has only this endpoint
	adapters []admin.Adapter // those with requests first
}

// membersOf returns the members of a pool by address.
func membersOf(p *pick.Pool) map[string]*member {
	all := make(map[string]*member)
	if p == nil {
		return all
	}
	for i := range p.Endpoints {
		c := pick.Copy{Base: true, InFlight: new(pick.Count)}
		alone := &pick.Pool{Endpoints: p.Endpoints[i : i+1], Predictable: p.Predictable, Index: pick.Index{Any: []pick.Copy{c}}}
		all[p.Endpoints[i].Address] = &member{alone: &pick.Snapshot{Pools: map[string]*pick.Pool{"": alone}}}
	}
	for name, copies := range p.Copies {
		for _, c := range copies {
			if m := all[p.Endpoints[c.Endpoint].Address]; !c.Base {
				m.adapters = append(m.adapters, admin.Adapter{Name: name, Place: c.InFlight.Place().String(), InFlight: c.InFlight.Load()})
			}
		}
	}
	for _, m := range all {
		slices.SortFunc(m.adapters, func(a, b admin.Adapter) int {
			return cmp.Or(-cmp.Compare(a.InFlight, b.InFlight), cmp.Compare(a.Name, b.Name))
		})
	}
	return all
}

// firstToken predicts the time to first token of a small request for the base model. It decides
// like a request for which there is no other endpoint, and counts nothing.
func (m *member) firstToken(now time.Time) *float64 {
	if m.alone == nil {
		return nil
	}
	r := pick.Request{Demand: pick.Demand{Prompt: admin.ExamplePrompt, Output: admin.ExamplePrompt, Now: now.UnixNano()}}
	picks, err := pick.Pick(pick.Policy{Rule: pick.Latency, Threshold: pick.DefaultThreshold}, m.alone, r, make([]pick.Decision, 1))
	if err != nil || len(picks) == 0 || picks[0].Estimate.Step == 0 {
		return nil
	}
	seconds := picks[0].Estimate.FirstToken()
	return &seconds
}
