package objects

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/v1alpha1"
)

// Sharing is how the requests of an LLMRoute share a pool with others, and what happens to those
// that cannot be served. It is immutable.
type Sharing struct {
	// Share is the route's weight within its band, at least 1.
	Share int32
	// TenantHeader and ProgramHeader are names of request headers in lower case; empty if there is
	// none.
	TenantHeader, ProgramHeader string
	// Shed means that late requests are rejected on arrival, see [v1alpha1.LLMRouteSpec.Late].
	Shed bool
	// FailClose says that requests are rejected while all endpoints of the pool are silent.
	FailClose bool
	// Fallback is zero if the route has none.
	Fallback Fallback
	// PerRoute limits the requests of the route together, and PerTenant those of each tenant.
	PerRoute, PerTenant Limit
}

// Fallback serves a request in place of the route's pool or adapter.
type Fallback struct {
	// Pool is the pool, or zero for the pool that the request was for. It may not exist.
	Pool Name
	// BaseModel says that the base model serves the request, whatever the route's adapter.
	BaseModel bool
}

// Limit limits requests. A number that is 0 limits nothing.
type Limit struct {
	// Concurrent is a number of requests at a time.
	Concurrent int32
	// RequestsPerMinute and TokensPerMinute are rates.
	RequestsPerMinute, TokensPerMinute int32
}

// Or returns s, or the default if s is nil: a share of 1, and nothing else.
func (s *Sharing) Or() Sharing {
	if s == nil {
		return Sharing{Share: 1}
	}
	return *s
}

// SharingOf returns the sharing of an LLMRoute, nil if the route has the default or does not exist.
func (w *World) SharingOf(route Name) *Sharing {
	if r := w.byName[route]; r != nil {
		return r.Sharing
	}
	return nil
}

// PriorityOf returns the band of an LLMRoute, 0 if it does not exist.
func (w *World) PriorityOf(route Name) int32 {
	if r := w.byName[route]; r != nil {
		return r.Priority
	}
	return 0
}

// Leads reports whether an LLMRoute exists that sends requests for its adapter to the pool.
func (w *World) Leads(route, pool Name, adapter string) bool {
	r := w.byName[route]
	return r != nil && r.Adapter == adapter && r.LeadsTo(pool)
}

// sharingOf returns the sharing of an LLMRoute, nil if it is the default.
func sharingOf(r *v1alpha1.LLMRoute) *Sharing {
	is := (*Sharing)(nil).Or()
	if r.Spec.Share != nil {
		is.Share = *r.Spec.Share
	}
	is.TenantHeader, is.ProgramHeader = string(r.Spec.TenantHeader), string(r.Spec.ProgramHeader)
	is.Shed, is.FailClose = r.Spec.Late == v1alpha1.LateShed, r.Spec.FailurePolicy == v1alpha1.FailClose
	if f := r.Spec.Fallback; f != nil {
		is.Fallback.BaseModel = f.BaseModel
		if f.Pool != "" {
			is.Fallback.Pool = Name{r.Namespace, f.Pool}
		}
	}
	if l := r.Spec.Limits; l != nil {
		is.PerRoute, is.PerTenant = limitOf(l.Route), limitOf(l.Tenant)
	}
	if is == (Sharing{Share: 1}) {
		return nil
	}
	return &is
}

func limitOf(l *v1alpha1.Limit) (is Limit) {
	if l == nil {
		return is
	}
	for _, of := range []struct {
		set *int32
		is  *int32
	}{{l.Concurrent, &is.Concurrent}, {l.RequestsPerMinute, &is.RequestsPerMinute}, {l.TokensPerMinute, &is.TokensPerMinute}} {
		if of.set != nil {
			*of.is = *of.set
		}
	}
	return is
}

// noteFallback records a problem if a route's fallback names a pool that does not exist.
func (w *World) noteFallback(r *Route) {
	of := r.Sharing.Or().Fallback.Pool
	if of != (Name{}) && w.Pools[of] == nil {
		w.fault(r.Kind, r.Name, v1alpha1.ReasonBackendNotFound,
			"spec.fallback names InferencePool %s, which does not exist: the route has no fallback", of)
	}
}

// The values of an LLMRoute's spec.late and spec.failurePolicy, and of a PoolSettings'
// spec.flow.mode.
var (
	lates    = []string{v1alpha1.LateServe, v1alpha1.LateShed}
	failures = []string{v1alpha1.FailOpen, v1alpha1.FailClose}
	modes    = []string{v1alpha1.FlowOn, v1alpha1.FlowOff}
)

// checkSharing validates the fields of an LLMRoute from which its [Sharing] is made.
func checkSharing(path *field.Path, s *v1alpha1.LLMRouteSpec) field.ErrorList {
	var errs field.ErrorList
	if s.Share != nil && (*s.Share < 1 || *s.Share > maxWeight) {
		errs = append(errs, field.Invalid(path.Child("share"), *s.Share, fmt.Sprintf("a share is 1 to %d", maxWeight)))
	}
	errs = append(errs, checkHeader(path.Child("tenantHeader"), string(s.TenantHeader), true)...)
	errs = append(errs, checkHeader(path.Child("programHeader"), string(s.ProgramHeader), false)...)
	for _, c := range []struct {
		name, value string
		all         []string
	}{{"late", s.Late, lates}, {"failurePolicy", s.FailurePolicy, failures}} {
		if c.value != "" && !slices.Contains(c.all, c.value) {
			errs = append(errs, field.NotSupported(path.Child(c.name), c.value, c.all))
		}
	}
	if s.Fallback != nil {
		errs = append(errs, checkFallback(path.Child("fallback"), s)...)
	}
	if l := s.Limits; l != nil {
		errs = append(errs, checkLimit(path.Child("limits", "route"), l.Route)...)
		errs = append(errs, checkLimit(path.Child("limits", "tenant"), l.Tenant)...)
		if l.Tenant != nil && s.TenantHeader == "" {
			errs = append(errs, field.Required(path.Child("tenantHeader"), "name the header that identifies tenants"))
		}
	}
	return errs
}

var (
	headerName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)
	// reserved are headers that hold credentials, and headers that HTTP, Envoy and Headgate use.
	// The CRD has the same expression.
	reserved = regexp.MustCompile(`^(x-(gateway|llm-d|envoy|forwarded|slo)-.*|proxy-.*|content-.*|grpc-.*|authorization|cookie|` +
		`set-cookie|x-api-key|api-key|host|connection|keep-alive|transfer-encoding|te|trailer|upgrade|expect|date|via|` +
		`x-request-id|traceparent|tracestate|epp-profile|test-epp-endpoint-selection)$`)
)

// checkHeader validates the name of a header that identifies a tenant or a program.
func checkHeader(path *field.Path, name string, tenant bool) field.ErrorList {
	if errs := checkLength(path, name, maxWord); len(errs) > 0 || name == "" {
		return errs
	}
	example := "x-program-id"
	if tenant {
		example = "x-tenant-id"
	}
	switch ours := strings.HasPrefix(name, "x-headgate-") && (!tenant || name != v1alpha1.ClientTenant); {
	case !headerName.MatchString(name):
		return field.ErrorList{field.Invalid(path, name, "want a header's name in lower case, such as "+example)}
	case reserved.MatchString(name):
		return field.ErrorList{field.Invalid(path, name,
			"it is a credential, or a header of HTTP, Envoy or Headgate: name another one, such as "+example)}
	case ours:
		return field.ErrorList{field.Invalid(path, name, "it is a header of Headgate: name another one, such as "+example)}
	}
	return nil
}

// checkFallback refuses a fallback that names nothing, or what the route already uses.
func checkFallback(path *field.Path, s *v1alpha1.LLMRouteSpec) field.ErrorList {
	f := s.Fallback
	switch base := f.BaseModel && s.Adapter != nil; {
	case f.Pool == "" && !f.BaseModel:
		return field.ErrorList{field.Required(path, "name a pool, or set baseModel")}
	case f.Pool == "" && !base:
		return field.ErrorList{field.Invalid(path.Child("baseModel"), f.BaseModel,
			"the route has no adapter: this is a fallback to itself")}
	case f.Pool != "" && !base && slices.ContainsFunc(s.BackendRefs, func(b v1alpha1.BackendReference) bool {
		return b.Name == f.Pool && (b.Weight == nil || *b.Weight > 0)
	}):
		return field.ErrorList{field.Invalid(path.Child("pool"), f.Pool,
			"the route already serves requests from this pool: this is a fallback to itself")}
	}
	return checkLength(path.Child("pool"), f.Pool, maxNameLen)
}

func checkLimit(path *field.Path, l *v1alpha1.Limit) field.ErrorList {
	if l == nil {
		return nil
	}
	var errs field.ErrorList
	for _, c := range []struct {
		name  string
		value *int32
	}{{"concurrent", l.Concurrent}, {"requestsPerMinute", l.RequestsPerMinute}, {"tokensPerMinute", l.TokensPerMinute}} {
		errs = append(errs, checkAtLeastOne(path.Child(c.name), c.value)...)
	}
	return errs
}

func checkAtLeastOne(path *field.Path, n *int32) field.ErrorList {
	if n != nil && *n < 1 {
		return field.ErrorList{field.Invalid(path, *n, "it must be at least 1")}
	}
	return nil
}

// checkFlow validates a PoolSettings' spec.flow, which may be nil.
func checkFlow(path *field.Path, f *v1alpha1.PoolFlow) field.ErrorList {
	if f == nil {
		return nil
	}
	var errs field.ErrorList
	if f.Mode != "" && !slices.Contains(modes, f.Mode) {
		errs = append(errs, field.NotSupported(path.Child("mode"), f.Mode, modes))
	}
	return append(errs, checkAtLeastOne(path.Child("requestsPerEndpoint"), f.RequestsPerEndpoint)...)
}

// Described returns the sharing as words for people, such as "share 3"; nil for the default.
func (s *Sharing) Described() []string {
	if s == nil {
		return nil
	}
	var words []string
	for _, c := range []struct {
		is   bool
		word string
	}{
		{s.Share != 1, fmt.Sprintf("share %d", s.Share)},
		{s.TenantHeader != "", "tenant by " + s.TenantHeader},
		{s.ProgramHeader != "", "program by " + s.ProgramHeader},
		{s.Shed, "late requests shed"},
		{s.FailClose, "fail close"},
		{s.Fallback.Pool != Name{}, "fallback to pool " + s.Fallback.Pool.String()},
		{s.Fallback.BaseModel, "fallback to the base model"},
	} {
		if c.is {
			words = append(words, c.word)
		}
	}
	for _, l := range []struct {
		of string
		Limit
	}{{"", s.PerRoute}, {" for each tenant", s.PerTenant}} {
		for _, n := range []struct {
			is   int32
			unit string
		}{{l.Concurrent, "at a time"}, {l.RequestsPerMinute, "requests per minute"}, {l.TokensPerMinute, "tokens per minute"}} {
			if n.is > 0 {
				words = append(words, fmt.Sprintf("at most %d %s%s", n.is, n.unit, l.of))
			}
		}
	}
	return words
}
