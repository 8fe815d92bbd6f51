package controller

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// large returns the objects of two Gateways with 50 listeners, 1,000 HTTPRoutes, 200 Services and
// 50 pools.
func large(t testing.TB) objects.Set {
	var text strings.Builder
	text.WriteString("kind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n")
	for g := range 2 {
		fmt.Fprintf(&text,
			"---\nkind: Gateway\nmetadata: {namespace: ns, name: g%d}\nspec:\n  gatewayClassName: headgate\n  listeners:\n", g)
		for l := range 50 {
			fmt.Fprintf(&text, "  - {name: l%d, port: 80, protocol: HTTP, hostname: l%d.test}\n", l, l)
		}
	}
	for s := range 200 {
		fmt.Fprintf(&text, "---\nkind: Service\nmetadata: {namespace: ns, name: s%d}\nspec: {ports: [{port: 80}]}\n", s)
	}
	for p := range 50 {
		fmt.Fprintf(&text, "---\nkind: InferencePool\nmetadata: {namespace: ns, name: p%d}\n", p)
		fmt.Fprintf(&text,
			"---\nkind: LLMRoute\nmetadata: {namespace: ns, name: m%d}\nspec: {parentRefs: [{name: g%d, sectionName: l%d}], backendRefs: [{name: p%d}]}\n", p,
			p%2, p, p)
	}
	for r := range 1000 {
		fmt.Fprintf(&text,
			"---\nkind: HTTPRoute\nmetadata: {namespace: ns, name: r%d}\nspec:\n  parentRefs: [{name: g%d, sectionName: l%d}]\n"+
				"  rules: [{matches: [{path: {type: PathPrefix, value: /r%d}}], backendRefs: [{name: s%d, port: 80}]}, {matches: [{path: {value: /x%d}, headers: [{name: a, value: b}]}], backendRefs: [{name: s%d, port: 80}]}]\n",
			r, r%2, r/2%50, r, r%200, r, (r+1)%200)
	}
	return network.Set(t, text.String())
}

func driver(t testing.TB) *Controller {
	template, err := envoy.Read(headgate.EnvoyYAML)
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{
		Template: template, Envoys: ads.New(ads.Config{Identify: ads.FromNode, Log: slog.New(slog.DiscardHandler)}),
		Answers: NewAnswers(), Log: slog.New(slog.DiscardHandler),
	})
}

// After any change, a control sends the same resources as one that has just started.
func TestEveryControlSendsTheSame(t *testing.T) {
	ctx := t.Context()
	for seed := range uint64(3) {
		d := driver(t)
		for step, n := range network.Walk(t, seed, 60) {
			w := objects.Build(objects.Set{Network: n})
			had := maps.Clone(d.makers)
			d.follow(ctx, w)
			for name, m := range d.makers {
				if was := had[name]; was != nil && was != m {
					t.Fatalf("walk %d, step %d: the maker of %s is forgotten", seed, step, name)
				}
			}
			other := driver(t)
			other.follow(ctx, w)
			if !maps.EqualFunc(d.sent, other.sent, same) {
				t.Fatalf("walk %d, step %d: the resources after changes differ from those of a new control; the plans are\n%s\nand\n%s",
					seed, step, d.plans.Text(), other.plans.Text())
			}
			if len(d.makers) != len(d.sent) {
				t.Fatalf("walk %d, step %d: %d Gateways, but %d makers", seed, step, len(d.sent), len(d.makers))
			}
			for name, q := range d.bisections {
				if p := other.bisections[name]; !reflect.DeepEqual(q.planned.Contents, p.planned.Contents) {
					t.Fatalf("walk %d, step %d: contents of %s are %v, want %v", seed, step, name, q.planned.Contents, p.planned.Contents)
				}
			}
		}
	}
}

// BenchmarkReplan measures the time from changed objects to new resources, for the objects of
// [large]. It changes a route, and a Service, which may affect every listener.
func BenchmarkReplan(b *testing.B) {
	for name, change := range map[string]func(n *objects.Network, i int){
		"change=route": func(n *objects.Network, i int) {
			n.HTTPRoutes = slices.Clone(n.HTTPRoutes)
			r := n.HTTPRoutes[i%len(n.HTTPRoutes)].DeepCopy()
			r.Spec.Rules[0].Matches[0].Path.Value = new(fmt.Sprint("/changed", i))
			n.HTTPRoutes[i%len(n.HTTPRoutes)] = *r
		},
		"change=whole": func(n *objects.Network, i int) {
			n.Services = slices.Clone(n.Services)
			n.Services[0].Labels = map[string]string{"i": strconv.Itoa(i)}
		},
	} {
		b.Run(name, func(b *testing.B) {
			d, w := driver(b), objects.Build(large(b))
			ctx := context.Background()
			d.follow(ctx, w)
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				n, is := *w.Network, *w
				change(&n, i)
				is.Network, w = &n, &is
				b.StartTimer()
				d.follow(ctx, w)
			}
		})
	}
}
