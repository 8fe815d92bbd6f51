package diagnosis

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/display"
)

// Forwarding is which request headers an Envoy forwards to extproc.
type Forwarding struct {
	// Rules are the forward_rules of each ext_proc filter.
	Rules []ForwardRules
	// NoClient means that Envoy removes [wire.ClientHeader], and nothing sets it.
	NoClient bool
}

// ForwardRules are the forward_rules of an ext_proc filter. A nil list is absent.
type ForwardRules struct {
	Allowed    *HeaderList `json:"allowed_headers"`
	Disallowed *HeaderList `json:"disallowed_headers"`
}

// HeaderList is a list of matchers, as Envoy's ListStringMatcher.
type HeaderList struct {
	Patterns []HeaderPattern `json:"patterns"`
}

// HeaderPattern is a matcher of names, as Envoy's StringMatcher. One of the strings is set.
type HeaderPattern struct {
	Exact      string `json:"exact"`
	Prefix     string `json:"prefix"`
	Suffix     string `json:"suffix"`
	Contains   string `json:"contains"`
	IgnoreCase bool   `json:"ignore_case"`
	SafeRegex  struct {
		Regex string `json:"regex"`
	} `json:"safe_regex"`
}

// RouteHeader is a header that an LLMRoute names.
type RouteHeader struct {
	// Route is the name of the LLMRoute. Field is tenantHeader or programHeader.
	Route, Field string
	Header       string
}

// ReadForwarding reads Envoy's answer to GET /config_dump?resource=static_listeners. It ignores
// dynamic listeners, because control configures them for the headers of routes. The result is nil
// if no listener has an ext_proc filter that waits for extproc.
func ReadForwarding(dump []byte) *Forwarding {
	var all any
	if json.Unmarshal(dump, &all) != nil {
		return nil
	}
	var found Forwarding
	removed, set := false, false
	walk(all, func(object map[string]any) {
		kind, _ := object["@type"].(string)
		if copies, _ := object["observability_mode"].(bool); strings.HasSuffix(kind, ".ext_proc.v3.ExternalProcessor") && !copies {
			var rules ForwardRules
			text, err := json.Marshal(object["forward_rules"])
			if err == nil && json.Unmarshal(text, &rules) == nil {
				found.Rules = append(found.Rules, rules)
			}
		}
		removed = removed || object["remove"] == wire.ClientHeader
		// The filter for API keys sets it. Header mutations have key, and JWT filters header_name.
		types, _ := object["type_urls"].([]any)
		keys := func(of any) bool {
			name, _ := of.(string)
			return strings.HasSuffix(name, ".api_key_auth.v3.ApiKeyAuth")
		}
		set = set || keys(kind) || slices.ContainsFunc(types, keys) || object["key"] == wire.ClientHeader ||
			object["header_name"] == wire.ClientHeader
	})
	if found.Rules == nil {
		return nil
	}
	found.NoClient = removed && !set
	return &found
}

// walk calls visit with each JSON object in a value.
func walk(value any, visit func(map[string]any)) {
	switch is := value.(type) {
	case map[string]any:
		visit(is)
		for _, v := range is {
			walk(v, visit)
		}
	case []any:
		for _, v := range is {
			walk(v, visit)
		}
	}
}

// Forwards reports whether a filter forwards a header. The name is in lower case.
func (f *Forwarding) Forwards(name string) bool {
	if name == wire.ClientHeader && f.NoClient {
		return false
	}
	return slices.ContainsFunc(f.Rules, func(r ForwardRules) bool {
		return (r.Allowed == nil || r.Allowed.matches(name)) && (r.Disallowed == nil || !r.Disallowed.matches(name))
	})
}

func (l *HeaderList) matches(name string) bool {
	return slices.ContainsFunc(l.Patterns, func(p HeaderPattern) bool { return p.matches(name) })
}

func (p HeaderPattern) matches(name string) bool {
	of := func(pattern string) string {
		if p.IgnoreCase {
			return strings.ToLower(pattern)
		}
		return pattern
	}
	switch {
	case p.Exact != "":
		return name == of(p.Exact)
	case p.Prefix != "":
		return strings.HasPrefix(name, of(p.Prefix))
	case p.Suffix != "":
		return strings.HasSuffix(name, of(p.Suffix))
	case p.Contains != "":
		return strings.Contains(name, of(p.Contains))
	}
	whole, err := regexp.Compile("^(?:" + p.SafeRegex.Regex + ")$")
	return err == nil && p.SafeRegex.Regex != "" && whole.MatchString(name)
}

// forwarding adds a warning for each header of routes that Envoy does not forward to extproc.
func (d *diagnosis) forwarding(f Facts) {
	if f.Envoy == nil || f.Envoy.Forwarding == nil {
		return
	}
	type header struct{ field, name string }
	routes := make(map[header][]string)
	var order []header
	for _, h := range f.RouteHeaders {
		if f.Envoy.Forwarding.Forwards(h.Header) {
			continue
		}
		of := header{h.Field, h.Header}
		if routes[of] == nil {
			order = append(order, of)
		}
		routes[of] = append(routes[of], h.Route)
	}
	for _, h := range order {
		what, example := "all clients of the route count as one tenant", wire.TenantPrefix+"id"
		if h.field == "programHeader" {
			what, example = "all requests of a tenant count as one program", wire.ProgramPrefix+"id"
		}
		do := "add the name to allowed_headers in the forward_rules of Envoy's ext_proc filter, or name a header that it forwards, such as " + example
		if h.name == wire.ClientHeader && f.Envoy.Forwarding.NoClient {
			do = "run headgate envoy with --api-keys, which sets this header, or name another header"
		}
		d.add(Warning, "envoy", do, "Envoy does not forward the header %s to extproc, which is the %s of LLMRoute %s: %s",
			h.name, h.field, display.Some(routes[h]), what)
	}
}
