package objects_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

func TestErrorsOfSharing(t *testing.T) {
	limit := func(route, tenant *v1alpha1.Limit) func(*v1alpha1.LLMRouteSpec) {
		return func(s *v1alpha1.LLMRouteSpec) { s.Limits = &v1alpha1.RouteLimits{Route: route, Tenant: tenant} }
	}
	tenant := func(name string) func(*v1alpha1.LLMRouteSpec) {
		return func(s *v1alpha1.LLMRouteSpec) { s.TenantHeader = v1alpha1.SharingHeader(name) }
	}
	const foreign = ": it is a credential, or a header of HTTP, Envoy or Headgate: name another one, such as x-tenant-id"
	for _, c := range []struct {
		change func(*v1alpha1.LLMRouteSpec)
		want   string // empty if it is accepted
	}{
		{func(*v1alpha1.LLMRouteSpec) {}, ""},
		{func(s *v1alpha1.LLMRouteSpec) { s.Share = new(int32(0)) }, "spec.share: Invalid value: 0: a share is 1 to 1000000"},
		{func(s *v1alpha1.LLMRouteSpec) { s.Share = new(int32(1000001)) }, "spec.share: Invalid value: 1000001: a share is 1 to 1000000"},
		{func(s *v1alpha1.LLMRouteSpec) { s.Share = new(int32(1)) }, ""},
		{tenant("x-headgate-client"), ""},
		{tenant("X-Tenant"), `spec.tenantHeader: Invalid value: "X-Tenant": want a header's name in lower case, such as x-tenant-id`},
		{tenant(":path"), `spec.tenantHeader: Invalid value: ":path": want a header's name in lower case, such as x-tenant-id`},
		{tenant("a b"), `spec.tenantHeader: Invalid value: "a b": want a header's name in lower case, such as x-tenant-id`},
		{tenant("authorization"), `spec.tenantHeader: Invalid value: "authorization"` + foreign},
		{tenant("cookie"), `spec.tenantHeader: Invalid value: "cookie"` + foreign},
		{tenant("x-api-key"), `spec.tenantHeader: Invalid value: "x-api-key"` + foreign},
		{tenant("x-gateway-pool"), `spec.tenantHeader: Invalid value: "x-gateway-pool"` + foreign},
		{tenant("x-envoy-ip"), `spec.tenantHeader: Invalid value: "x-envoy-ip"` + foreign},
		{
			tenant("x-headgate-fallback"),
			`spec.tenantHeader: Invalid value: "x-headgate-fallback": it is a header of Headgate: name another one, such as x-tenant-id`,
		},
		{tenant(strings.Repeat("x", 257)), "spec.tenantHeader: Too long: may not be more than 256 characters"},
		{
			func(s *v1alpha1.LLMRouteSpec) { s.ProgramHeader = "x-headgate-client" },
			`spec.programHeader: Invalid value: "x-headgate-client": it is a header of Headgate: name another one, such as x-program-id`,
		},
		{func(s *v1alpha1.LLMRouteSpec) { s.Late = "Drop" }, `spec.late: Unsupported value: "Drop": supported values: "Serve", "Shed"`},
		{
			func(s *v1alpha1.LLMRouteSpec) { s.FailurePolicy = "FailClosed" },
			`spec.failurePolicy: Unsupported value: "FailClosed": supported values: "FailOpen", "FailClose"`,
		},
		{
			func(s *v1alpha1.LLMRouteSpec) { s.Fallback = &v1alpha1.Fallback{} },
			"spec.fallback: Required value: name a pool, or set baseModel",
		},
		{
			func(s *v1alpha1.LLMRouteSpec) { s.Fallback = &v1alpha1.Fallback{Pool: "base"} },
			`spec.fallback.pool: Invalid value: "base": the route already serves requests from this pool: this is a fallback to itself`,
		},
		{func(s *v1alpha1.LLMRouteSpec) {
			s.BackendRefs = append(s.BackendRefs, v1alpha1.BackendReference{Name: "small", Weight: new(int32(0))})
			s.Fallback = &v1alpha1.Fallback{Pool: "small"}
		}, ""},
		{
			func(s *v1alpha1.LLMRouteSpec) { s.Fallback = &v1alpha1.Fallback{BaseModel: true} },
			"spec.fallback.baseModel: Invalid value: true: the route has no adapter: this is a fallback to itself",
		},
		{func(s *v1alpha1.LLMRouteSpec) {
			s.Adapter, s.Fallback = &v1alpha1.Adapter{Name: "a"}, &v1alpha1.Fallback{BaseModel: true}
		}, ""},
		{func(s *v1alpha1.LLMRouteSpec) {
			s.Adapter, s.Fallback = &v1alpha1.Adapter{Name: "a"}, &v1alpha1.Fallback{Pool: "base", BaseModel: true}
		}, ""},
		{
			limit(&v1alpha1.Limit{Concurrent: new(int32(0))}, nil),
			"spec.limits.route.concurrent: Invalid value: 0: it must be at least 1",
		},
		{
			limit(&v1alpha1.Limit{RequestsPerMinute: new(int32(-1))}, nil),
			"spec.limits.route.requestsPerMinute: Invalid value: -1: it must be at least 1",
		},
		{
			limit(nil, &v1alpha1.Limit{TokensPerMinute: new(int32(1))}),
			"spec.tenantHeader: Required value: name the header that identifies tenants",
		},
		{func(s *v1alpha1.LLMRouteSpec) {
			tenant("x-tenant-id")(s)
			limit(nil, &v1alpha1.Limit{TokensPerMinute: new(int32(0))})(s)
		}, "spec.limits.tenant.tokensPerMinute: Invalid value: 0: it must be at least 1"},
		{limit(&v1alpha1.Limit{}, nil), ""},
	} {
		r := aRoute("r", "base", 0)
		c.change(&r.Spec)
		errs := objects.CheckRoute(&r)
		if len(errs) == 0 && c.want == "" || len(errs) == 1 && errs[0].Error() == c.want {
			continue
		}
		t.Errorf("%v, want %q", errs, c.want)
	}
}

// A route that sets nothing has the default, and others have what they set.
func TestSharingOfARoute(t *testing.T) {
	plain, own := aRoute("plain", "base", 0), aRoute("own", "base", 0)
	own.Spec.Priority, own.Spec.Share, own.Spec.TenantHeader, own.Spec.ProgramHeader = 100, new(int32(3)), "x-tenant-id", "x-program-id"
	own.Spec.Late, own.Spec.FailurePolicy, own.Spec.Fallback = "Shed", "FailClose", &v1alpha1.Fallback{Pool: "small", BaseModel: true}
	own.Spec.Limits = &v1alpha1.RouteLimits{
		Route:  &v1alpha1.Limit{Concurrent: new(int32(200))},
		Tenant: &v1alpha1.Limit{RequestsPerMinute: new(int32(60)), TokensPerMinute: new(int32(90000))},
	}
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("base", llama, 8000)}, Routes: []v1alpha1.LLMRoute{plain, own},
	})
	name := func(n string) objects.Name { return objects.Name{Namespace: "default", Name: n} }
	if got := w.SharingOf(name("plain")); got != nil || got.Or() != (objects.Sharing{Share: 1}) {
		t.Errorf("a route that sets nothing has %+v", got)
	}
	if got := w.SharingOf(name("other")); got != nil || w.PriorityOf(name("other")) != 0 {
		t.Errorf("no route has %+v", got)
	}
	want := objects.Sharing{
		Share: 3, TenantHeader: "x-tenant-id", ProgramHeader: "x-program-id", Shed: true, FailClose: true,
		Fallback: objects.Fallback{Pool: name("small"), BaseModel: true},
		PerRoute: objects.Limit{Concurrent: 200}, PerTenant: objects.Limit{RequestsPerMinute: 60, TokensPerMinute: 90000},
	}
	got := w.SharingOf(name("own"))
	if diff := cmp.Diff(&want, got); diff != "" || w.PriorityOf(name("own")) != 100 {
		t.Errorf("(-want +got):\n%s", diff)
	}
	const words = "share 3, tenant by x-tenant-id, program by x-program-id, late requests shed, fail close, " +
		"fallback to pool default/small, fallback to the base model, at most 200 at a time, " +
		"at most 60 requests per minute for each tenant, at most 90000 tokens per minute for each tenant"
	if got := strings.Join(got.Described(), ", "); got != words {
		t.Errorf("it is described as %s", got)
	}
	const fault = "LLMRoute default/own: spec.fallback names InferencePool default/small, which does not exist: the route has no fallback"
	if len(w.Problems) != 1 || w.Problems[0] != fault || len(w.Faults) != 1 || w.Faults[0].Reason != v1alpha1.ReasonBackendNotFound {
		t.Errorf("problems are %q, faults %+v", w.Problems, w.Faults)
	}
}
