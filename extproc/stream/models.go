package stream

import (
	"net/http"
	"slices"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// modelJSON is a model in OpenAI's list format, with two additional fields of vLLM.
type modelJSON struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"` // Unix time of the model's object or file; 0 if unknown
	OwnedBy string `json:"owned_by"`
	// Parent is the client's name of an adapter's base model.
	Parent *string `json:"parent"`
	// MaxLength is the maximum number of tokens of prompt and output.
	MaxLength int `json:"max_model_len,omitempty"`
}

func (s *scope) describeModel(view *endpointstate.View, offer *objects.Offer, m listedModel) modelJSON {
	j := modelJSON{
		ID: m.Name, Object: "model", OwnedBy: "headgate",
		MaxLength: fleet.Read(s.server.Fleet, func(s *endpointstate.State) int { return s.MaxLength(m.pool) }),
	}
	if !m.Created.IsZero() {
		j.Created = m.Created.Unix()
	}
	if parent := parentOf(view, offer, m); parent != "" {
		j.Parent = &parent
	}
	return j
}

// listedModel is a model that the client's requests may name.
type listedModel struct {
	objects.Model
	pool objects.Name
	// adapter is the engine's name of an adapter; empty for a base model.
	adapter string
}

// parentOf returns the client's name of an adapter's base model: the name in the base model's route
// in the same pool, otherwise the name that an open pool lists. It is empty if m is no adapter, or
// if clients cannot name the base model.
func parentOf(view *endpointstate.View, offer *objects.Offer, m listedModel) string {
	if m.adapter == "" || !isAdapter(view.World, m) {
		return ""
	}
	for _, r := range offer.Routes {
		if r.Adapter == "" && len(r.Models) > 0 && r.LeadsTo(m.pool) {
			return r.Models[0]
		}
	}
	pool := view.World.Pools[m.pool]
	if s := view.Snapshot.Pools[m.pool.String()]; pool != nil && !pool.Routed && s != nil && len(s.Base) > 0 {
		return s.Base[0].Model
	}
	return ""
}

// isAdapter reports whether a model is a LoRA adapter, and not a base model or a model of a model
// runtime.
func isAdapter(w *objects.World, m listedModel) bool {
	e, ok := w.Entry(objects.ModelKey{Pool: m.pool, ID: m.adapter})
	return !ok || e.Type == objects.DefaultType
}

// unwell returns errUnwell if no endpoint that requests may use is healthy.
func (s *scope) unwell() error {
	view := s.server.Fleet.View()
	offer, err := s.offer(view)
	if err != nil {
		return err
	}
	counts := s.counts(offer, objects.Name{})
	for name, declared := range view.World.Pools {
		p := view.Snapshot.Pools[name.String()]
		if p == nil || !counts(name) {
			continue
		}
		if s.takesOpen() && !declared.Routed && name != s.server.Default && len(p.Copies) == 0 && !s.server.placing() &&
			!leads(offer, name) {
			continue // the pool serves no model
		}
		for _, e := range p.Endpoints {
			if state := e.State; state == pick.Healthy || state == pick.Suspect || state == pick.Migrating {
				return nil
			}
		}
	}
	return errUnwell
}

// leads reports whether a route of an offer leads to a pool.
func leads(offer *objects.Offer, pool objects.Name) bool {
	return slices.ContainsFunc(offer.Routes, func(r *objects.Route) bool { return r.LeadsTo(pool) })
}

// admitted returns the models that a request may name: models of routes, registered models, and
// models that endpoints of pools without routes list. The result known is false if such an endpoint
// lists no models.
func (s *scope) admitted(view *endpointstate.View, offer *objects.Offer) (all []listedModel, known bool) {
	given, isGiven := s.given(view.World)
	routed := make([]listedModel, 0, len(offer.Models()))
	for _, m := range offer.Models() {
		r := offer.Route(m.Name)
		if isGiven && !r.LeadsTo(given) {
			continue
		}
		pool := r.Backends[0].Pool
		routed = append(routed, listedModel{m, pool, s.server.Fleet.Active(view.World, objects.ModelKey{Pool: pool, ID: r.Adapter})})
	}
	registered := s.registered(view, offer)
	known = true
	seen := make(map[string]bool)
	for _, m := range registered {
		seen[m.Name] = true
	}
	for _, pool := range s.openPools(view) {
		p := view.World.Pools[pool]
		if p == nil || p.Routed {
			continue
		}
		snapshot := view.Snapshot.Pools[pool.String()]
		names, listed := snapshot.Names()
		known = known && (listed || s.inferenceOnly()) // if clients may only run inferences, endpoints without a list do not matter
		for _, name := range names {
			if offer.Route(name) != nil || seen[name] {
				continue
			}
			seen[name] = true
			m := listedModel{objects.Model{Name: name}, pool, name}
			if slices.ContainsFunc(snapshot.Base, func(c pick.Copy) bool { return slices.Contains(c.Names, name) }) {
				m.adapter = ""
			}
			all = append(all, m)
		}
	}
	return slices.Concat(all, registered, routed), known
}

// openPools returns the pools in which a request may name any model that an endpoint lists, even if
// no LLMRoute names it.
func (s *scope) openPools(view *endpointstate.View) []objects.Name {
	first, ok := s.given(view.World)
	if !ok {
		first = s.commandLine()
	}
	if s.takesOpen() {
		return append([]objects.Name{first}, view.World.Open()...)
	}
	return []objects.Name{first}
}

// registered returns the models that ModelMesh clients registered and that no object names.
func (s *scope) registered(view *endpointstate.View, offer *objects.Offer) []listedModel {
	if !s.server.placing() {
		return nil
	}
	var all []listedModel
	given, _ := s.given(view.World)
	counts := s.counts(offer, given)
	for _, name := range s.server.Fleet.RegisteredNames(counts) {
		if offer.Route(name) == nil {
			pool, _ := s.server.Fleet.Registered(name, counts)
			all = append(all, listedModel{Model: objects.Model{Name: name}, pool: pool}) // without a creation time, which is unknown
		}
	}
	return all
}

func (x *exchange) replyWith(code string, v any) responses {
	return x.reply(http.StatusOK, code, immediate(http.StatusOK, code, encode(v)))
}
