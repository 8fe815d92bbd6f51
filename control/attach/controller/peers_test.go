package controller

import (
	"bytes"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// table contains the reports that controls share. Tests read and write it.
type table struct {
	shared []Seen
	seen   map[string]Seen
}

func (h *table) Share(s Seen)                             { h.shared = append(h.shared, s) }
func (h *table) Seen() (map[string]Seen, <-chan struct{}) { return h.seen, nil }

// pair returns a control that has a Gateway with two routes, and the table of its peers.
func pair(t *testing.T, routes string) (*Controller, *table) {
	template, err := envoy.Read(headgate.EnvoyYAML)
	if err != nil {
		t.Fatal(err)
	}
	h := new(table)
	d := New(Config{
		Template: template, Envoys: ads.New(ads.Config{Identify: ads.FromNode, Log: slog.New(slog.DiscardHandler)}),
		Answers: NewAnswers(), Peers: h, Log: slog.New(slog.DiscardHandler),
	})
	d.follow(t.Context(), objects.Build(network.Set(t, network.Standard(routes))))
	return d, h
}

const twoRoutes = `kind: HTTPRoute
metadata: {namespace: ns, name: good}
spec: {parentRefs: [{name: g}], rules: [{matches: [{path: {value: /good}}], backendRefs: [{name: a, port: 80}]}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: bad}
spec: {parentRefs: [{name: g}], rules: [{matches: [{path: {value: /bad}}], backendRefs: [{name: a, port: 80}]}]}
`

// A Gateway whose Envoys are connected to another control is programmed when one of them has the
// current resources. Older resources do not suffice.
func TestGatewayIsProgrammedByEnvoysOfAnotherControl(t *testing.T) {
	gateway := objects.Name{Namespace: "ns", Name: "g"}
	one, h := pair(t, twoRoutes)
	one.envoys[ads.Envoy{Gateway: gateway, Stream: 1}] = 1
	one.share()
	one.share()
	if len(h.shared) != 1 {
		t.Fatalf("the same state is shared %d times", len(h.shared))
	}
	other, _ := pair(t, twoRoutes)
	if all := other.programmedAnywhere(); len(all) > 0 {
		t.Errorf("before the other control's report, %v are programmed", all)
	}
	other.peers = map[string]Seen{"one": h.shared[0]}
	if all := other.programmedAnywhere(); !maps.Equal(all, map[objects.Name]bool{gateway: true}) {
		t.Errorf("%v are programmed", all)
	}
	ahead, _ := pair(t, twoRoutes+"---\nkind: Service\nmetadata: {namespace: ns, name: c}\nspec: {ports: [{port: 80}]}\n---\n"+
		"kind: HTTPRoute\nmetadata: {namespace: ns, name: new}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: c, port: 80}]}]}\n")
	ahead.peers = other.peers
	if all := ahead.programmedAnywhere(); len(all) > 0 {
		t.Errorf("%v are programmed, although one Envoy lags behind", all)
	}
	delete(one.envoys, ads.Envoy{Gateway: gateway, Stream: 1})
	one.share()
	if len(h.shared) != 2 || h.shared[1][gateway.String()].Has != "" {
		t.Errorf("after its Envoy disconnected, it shares %v", h.shared)
	}
}

// If an Envoy of another control rejects a route, this control also leaves it out until it changes.
// So both controls send the same resources.
func TestRouteRejectedAtAnotherControlIsLeftOut(t *testing.T) {
	d, _ := pair(t, twoRoutes)
	bad, gateway := objects.Object{Kind: objects.HTTPRouteKind, Name: objects.Name{Namespace: "ns", Name: "bad"}},
		objects.Name{Namespace: "ns", Name: "g"}
	content := d.bisections[gateway].planned.Contents[bad]
	before := d.digests[gateway]
	say := func(content string) {
		d.peers = map[string]Seen{"one": {gateway.String(): {
			Refused: []string{"secret x: no"},
			Routes:  map[string]SeenRoute{bad.String(): {Content: content, Message: "too large"}},
		}}}
		d.put()
	}
	refused := func() []string {
		var all []string
		for of, v := range d.plans.Routes {
			if v.Envoys != nil {
				all = append(all, of.String())
			}
		}
		return all
	}
	say(content)
	if got := refused(); !slices.Equal(got, []string{bad.String()}) || d.digests[gateway] == before {
		t.Errorf("routes left out: %v", got)
	}
	if got := d.plans.Gateways[0].Refused; !slices.Equal(got, []string{"secret x: no"}) {
		t.Errorf("other rejected resources: %q", got)
	}
	if replan, _ := d.search(time.Now()); replan {
		t.Error("another control's finding leads to new plans repeatedly")
	}
	d.share()
	if len(d.shared) > 0 {
		t.Errorf("it shares findings of another control: %v", d.shared)
	}
	say("of another version of the route")
	if got := refused(); len(got) > 0 || d.digests[gateway] != before {
		t.Errorf("still left out after they changed: %v", got)
	}
	d.peers = nil
	d.put()
	if d.plans.Gateways[0].Refused != nil {
		t.Errorf("still rejected: %q", d.plans.Gateways[0].Refused)
	}
}

// A rejection that another control shares has the same effect as one of this control's Envoys. If
// several controls share it, it is reported once.
func TestRejectionsAreSharedUnchanged(t *testing.T) {
	one, h := pair(t, twoRoutes)
	gateway, bad := objects.Name{Namespace: "ns", Name: "g"},
		objects.Object{Kind: objects.HTTPRouteKind, Name: objects.Name{Namespace: "ns", Name: "bad"}}
	from := ads.Envoy{Gateway: gateway, Stream: 1}
	for now := time.Now(); one.plans.Routes[bad].Envoys == nil; now = now.Add(time.Second) {
		if now.After(time.Now().Add(time.Minute)) {
			t.Fatal("timeout searching the route that an Envoy rejects")
		}
		all := one.withTrials(one.sent)[gateway]
		for name, r := range all[order.Routes] {
			is := order.Answer{Type: order.Routes, Names: []string{name}, Versions: map[string]string{name: r.Version}}
			if bytes.Contains(r.Body.GetValue(), []byte("/bad")) {
				is.Refused = "no such path"
			}
			one.Answers.Answered(from, is)
		}
		for name, r := range one.sent[gateway][order.Listeners] {
			one.Answers.Answered(from, order.Answer{
				Type: order.Listeners, Names: []string{name},
				Versions: map[string]string{name: r.Version},
				Refused:  name + ": port in use",
			})
		}
		one.receive()
		one.bisect(now)
	}
	one.share()
	seen := h.shared[len(h.shared)-1]
	is := seen[gateway.String()]
	if r := is.Routes[bad.String()]; len(is.Routes) != 1 || r.Message != "no such path" || !r.Dropped {
		t.Errorf("the shared routes are %+v", is.Routes)
	}
	if len(is.Refused) != 1 || !strings.Contains(is.Refused[0], "port in use") {
		t.Errorf("the shared other resources are %q", is.Refused)
	}
	other, _ := pair(t, twoRoutes)
	other.peers = map[string]Seen{"one": seen, "two": seen}
	other.put()
	if other.digests[gateway] != one.digests[gateway] {
		t.Error("the two controls send their Envoys different resources")
	}
	if got := other.plans.Gateways[0].Refused; !slices.Equal(got, is.Refused) {
		t.Errorf("other rejected resources: %q", got)
	}
}
