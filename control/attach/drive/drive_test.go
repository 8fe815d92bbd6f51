package drive

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// large is two Gateways of 50 listeners with 1,000 HTTPRoutes, 200 Services and 50 pools.
func large(t testing.TB) objects.Set {
	var text strings.Builder
	text.WriteString("kind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n")
	for g := range 2 {
		fmt.Fprintf(&text, "---\nkind: Gateway\nmetadata: {namespace: ns, name: g%d}\nspec:\n  gatewayClassName: headgate\n  listeners:\n", g)
		for l := range 50 {
			fmt.Fprintf(&text, "  - {name: l%d, port: 80, protocol: HTTP, hostname: l%d.test}\n", l, l)
		}
	}
	for s := range 200 {
		fmt.Fprintf(&text, "---\nkind: Service\nmetadata: {namespace: ns, name: s%d}\nspec: {ports: [{port: 80}]}\n", s)
	}
	for p := range 50 {
		fmt.Fprintf(&text, "---\nkind: InferencePool\nmetadata: {namespace: ns, name: p%d}\n", p)
		fmt.Fprintf(&text, "---\nkind: LLMRoute\nmetadata: {namespace: ns, name: m%d}\nspec: {parentRefs: [{name: g%d, sectionName: l%d}], backendRefs: [{name: p%d}]}\n", p, p%2, p, p)
	}
	for r := range 1000 {
		fmt.Fprintf(&text, "---\nkind: HTTPRoute\nmetadata: {namespace: ns, name: r%d}\nspec:\n  parentRefs: [{name: g%d, sectionName: l%d}]\n"+
			"  rules: [{matches: [{path: {type: PathPrefix, value: /r%d}}], backendRefs: [{name: s%d, port: 80}]}, {matches: [{path: {value: /x%d}, headers: [{name: a, value: b}]}], backendRefs: [{name: s%d, port: 80}]}]\n",
			r, r%2, r/2%50, r, r%200, r, (r+1)%200)
	}
	return network.Set(t, text.String())
}

func driver(t testing.TB) *Driver {
	template, err := envoy.Read(headgate.EnvoyYAML)
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Template: template, Envoys: ads.New(ads.Config{Who: ads.Said, Log: slog.New(slog.DiscardHandler)}), Answers: NewAnswers(), Log: slog.New(slog.DiscardHandler)})
}

// BenchmarkReplan measures how long it takes from a changed route to what Envoys are given, of [large].
func BenchmarkReplan(b *testing.B) {
	d, w := driver(b), objects.Build(large(b))
	ctx := context.Background()
	d.follow(ctx, w)
	for b.Loop() {
		n := *w.Network
		is := *w
		is.Network = &n
		d.follow(ctx, &is)
	}
}
