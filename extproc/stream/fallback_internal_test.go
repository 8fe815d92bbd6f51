package stream

import (
	"testing"

	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

func TestFallbackOfARejection(t *testing.T) {
	pool := func(name string) objects.Name { return objects.Name{Namespace: "ns", Name: name} }
	adapter := route.Target{Route: pool("r"), Pool: pool("large"), Adapter: "sql"}
	base := route.Target{Route: pool("r"), Pool: pool("large")}
	small := objects.Fallback{Pool: pool("small")}
	baseModel := objects.Fallback{BaseModel: true}
	both := objects.Fallback{Pool: pool("small"), BaseModel: true}
	itself := objects.Fallback{Pool: pool("large")}
	for _, c := range []struct {
		name string
		is   rejection
		want string // pool/adapter: name; empty if the request is rejected
	}{
		{"too many requests", rejection{status: 429, target: adapter, of: small}, "small/sql: small"},
		{"unavailable", rejection{status: 503, target: adapter, of: small}, "small/sql: small"},
		{"timeout", rejection{status: 504, target: adapter, of: small}, "small/sql: small"},
		{"the client's error", rejection{status: 400, target: adapter, of: small}, ""},
		{"an unknown model", rejection{status: 404, target: adapter, of: small}, ""},
		{"an internal error", rejection{status: 500, target: adapter, of: small}, ""},
		{"a limit of the route", rejection{status: 429, limited: true, target: adapter, of: small}, ""},
		{"an endpoint may have it", rejection{status: 503, begun: true, target: adapter, of: small}, ""},
		{"a fallback has no fallback", rejection{status: 503, again: true, target: adapter, of: small}, ""},
		{"a stored response", rejection{status: 503, stored: true, target: adapter, of: small}, ""},
		{"no fallback", rejection{status: 503, target: adapter}, ""},
		{"the base model", rejection{status: 503, target: adapter, of: baseModel}, "large/: baseModel"},
		{"the base model in place of itself", rejection{status: 503, target: base, of: baseModel}, ""},
		{"the base model of another pool", rejection{status: 503, target: adapter, of: both}, "small/: small"},
		{"the pool in place of itself", rejection{status: 503, target: adapter, of: itself}, ""},
		{"a gateway chose the pool", rejection{status: 503, given: true, target: adapter, of: small}, ""},
		{"a gateway chose the pool, and both differ", rejection{status: 503, given: true, target: adapter, of: both}, ""},
		{"a gateway chose the pool, the base model", rejection{status: 503, given: true, target: adapter, of: baseModel}, "large/: baseModel"},
	} {
		to, name, ok := c.is.fallback()
		got := ""
		if ok {
			got = to.Pool.Name + "/" + to.Adapter + ": " + name
		}
		if got != c.want || ok && to.Route != c.is.target.Route {
			t.Errorf("%s: the fallback is %q, want %q", c.name, got, c.want)
		}
	}
}
