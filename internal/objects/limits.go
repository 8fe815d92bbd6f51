package objects

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// most is the maximum number of items in the lists of Gateway API's objects, by path below spec, as
// in the CRDs of the standard channel. A folder refuses what an API server refuses.
var most = map[string]map[string]int{
	BackendTLSPolicyKind: {"targetRefs": 16, "validation.caCertificateRefs": 8, "validation.subjectAltNames": 5},
	GatewayKind: {
		"addresses": 16, "listeners": 64, "listeners.allowedRoutes.kinds": 8, "listeners.tls.certificateRefs": 64,
		"tls.frontend.default.validation.caCertificateRefs": 16, "tls.frontend.perPort": 64,
		"tls.frontend.perPort.tls.validation.caCertificateRefs": 16,
	},
	GRPCRouteKind:      routeLists(map[string]int{"matches.headers": 16}),
	HTTPRouteKind:      routeLists(map[string]int{"matches.headers": 16, "matches.queryParams": 16}, "cors"),
	ListenerSetKind:    {"listeners": 64, "listeners.allowedRoutes.kinds": 8, "listeners.tls.certificateRefs": 64},
	ReferenceGrantKind: {"from": 16, "to": 16},
}

// routeLists returns the limits of an HTTPRoute or a GRPCRoute, with more for each rule.
func routeLists(more map[string]int, cors ...string) map[string]int {
	filter := map[string]int{}
	for _, of := range []string{"requestHeaderModifier", "responseHeaderModifier"} {
		filter[of+".set"], filter[of+".add"], filter[of+".remove"] = 16, 16, 16
	}
	for _, of := range cors {
		filter[of+".allowOrigins"], filter[of+".allowHeaders"], filter[of+".exposeHeaders"], filter[of+".allowMethods"] = 64, 64, 64, 9
	}
	all := map[string]int{"hostnames": 16, "parentRefs": 32, "rules": 16}
	rule := map[string]int{"backendRefs": 16, "backendRefs.filters": 16, "filters": 16, "matches": 64}
	maps.Copy(rule, more)
	for path, n := range filter {
		rule["filters."+path], rule["backendRefs.filters."+path] = n, n
	}
	for path, n := range rule {
		all["rules."+path] = n
	}
	return all
}

// maxMatches is the maximum number of matches in all rules of a route, from the CRDs.
const maxMatches = 128

// CheckLimits reports the lists of a Gateway API object that have too many items.
func CheckLimits(kind string, object any) field.ErrorList {
	text, err := json.Marshal(object)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	var is struct{ Spec map[string]any }
	if err := json.Unmarshal(text, &is); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	c := counted{most: most[kind]}
	c.walk(is.Spec, "", field.NewPath("spec"))
	if c.matches > maxMatches {
		c.errs = append(c.errs, field.TooMany(field.NewPath("spec", "rules"), c.matches, maxMatches))
	}
	return c.errs
}

// counted collects the errors of one object.
type counted struct {
	most    map[string]int
	matches int
	errs    field.ErrorList
}

func (c *counted) walk(v any, path string, at *field.Path) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			c.walk(v[name], strings.TrimPrefix(path+"."+name, "."), at.Child(name))
		}
	case []any:
		if limit, ok := c.most[path]; ok {
			c.errs = append(c.errs, checkCount(at, len(v), limit)...)
		}
		if path == "rules.matches" {
			c.matches += len(v)
		}
		for i, item := range v {
			c.walk(item, path, at.Index(i))
		}
	}
}
