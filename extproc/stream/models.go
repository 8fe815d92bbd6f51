package stream

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// modelJSON is a model as OpenAI's API lists it.
type modelJSON struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func describeModel(m objects.Model) modelJSON {
	j := modelJSON{ID: m.Name, Object: "model", OwnedBy: "headgate"}
	if !m.Created.IsZero() {
		j.Created = m.Created.Unix()
	}
	return j
}

// models answers for the list of models, or for the one of a name, still escaped. It returns nil where only the engines
// know what they answer to, and do not say.
func (x *exchange) models(escaped string) responses {
	all, known := x.admitted()
	if !known {
		return nil
	}
	if x.op == openai.ListModels {
		list := struct {
			Object string      `json:"object"`
			Data   []modelJSON `json:"data"`
		}{"list", []modelJSON{}}
		for _, m := range all {
			list.Data = append(list.Data, describeModel(m))
		}
		return x.replyWith(list)
	}
	name, err := url.PathUnescape(escaped)
	if err != nil {
		return x.fail(errUnknownPath, "")
	}
	for _, m := range all {
		if m.Name == name {
			return x.replyWith(describeModel(m))
		}
	}
	return x.fail(x.unknown(route.ErrUnknownModel), strings.ToValidUTF8(name, "�"))
}

// admitted returns the models that a request may name: those of routes, and what the endpoints of a pool without routes
// list.
func (x *exchange) admitted() (all []objects.Model, known bool) {
	view := x.server.Fleet.View()
	pool := x.server.Default
	if given, ok := x.given(view.World); ok {
		pool = given
	}
	registered := x.registered(view)
	p := view.World.Pools[pool]
	if p == nil || p.Routed {
		return append(registered, view.World.Models()...), true
	}
	names, known := view.Snapshot.Pools[pool.String()].Names()
	for _, name := range names {
		if view.World.Route(name) == nil {
			all = append(all, objects.Model{Name: name})
		}
	}
	if !known && x.front == Own {
		known = true // nothing else may pass
	}
	return slices.Concat(all, registered, view.World.Models()), known
}

// registered returns the models that may be named though no object says so.
func (x *exchange) registered(view *fleet.View) []objects.Model {
	if x.server.Flow == nil {
		return nil
	}
	var all []objects.Model
	given, _ := x.given(view.World)
	for _, name := range x.server.Fleet.RegisteredNames(given) {
		if view.World.Route(name) == nil {
			all = append(all, objects.Model{Name: name})
		}
	}
	return all
}

func (x *exchange) replyWith(v any) responses {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return x.reply(http.StatusOK, "models", immediate(http.StatusOK, "models", body))
}
