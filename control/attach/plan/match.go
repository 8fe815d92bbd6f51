package plan

import (
	"cmp"
	"fmt"
	"regexp/syntax"
	"strings"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// PathKind is how a path is matched.
type PathKind int

// Kinds of path matches, from less to more specific. Gateway API defines that Exact precedes
// PathPrefix, and does not define where RegularExpression is.
const (
	// Prefix matches whole path elements: /a matches /a and /a/b, but not /ab.
	Prefix PathKind = iota
	// Regex matches the whole path.
	Regex
	Exact
)

// Match matches a request that fulfils all its conditions.
type Match struct {
	Kind PathKind
	Path string
	// Method is the required method; empty matches any method.
	Method string
	// Headers and Query are the required headers and query parameters.
	Headers, Query []Value
	// AnyService is true if the match requires a gRPC method but no gRPC service. Such a match is
	// less specific than one that requires a service (GRPCRoute, spec.rules.matches).
	AnyService bool
}

// Value is the required value of a header or query parameter. It is an exact value, or a regular
// expression that must match the whole value.
type Value struct {
	Name, Value string
	Regex       bool
}

// compare returns a number above 0 if m is more specific than o, and below 0 if o is.
func (m Match) compare(o Match) int {
	// From less to more specific: a prefix of all paths, a method of any service, a path of one
	// service.
	path := func(m Match) (kind PathKind, length, method int) {
		if m.AnyService {
			return Prefix, len("/"), 1
		}
		return m.Kind, len(m.Path), min(len(m.Method), 1)
	}
	kind, length, method := path(m)
	otherKind, otherLength, otherMethod := path(o)
	return cmp.Or(
		cmp.Compare(kind, otherKind),
		cmp.Compare(length, otherLength),
		cmp.Compare(method, otherMethod),
		cmp.Compare(len(m.Headers), len(o.Headers)),
		cmp.Compare(len(m.Query), len(o.Query)),
	)
}

// matchOf converts a match of an HTTPRoute. The error is why the match is invalid.
func matchOf(m gatewayv1.HTTPRouteMatch) (Match, error) {
	is := Match{Kind: Prefix, Path: "/"}
	if m.Path != nil {
		is.Path = ptr.Deref(m.Path.Value, "/")
		switch kind := ptr.Deref(m.Path.Type, gatewayv1.PathMatchPathPrefix); kind {
		case gatewayv1.PathMatchExact:
			is.Kind = Exact
		case gatewayv1.PathMatchPathPrefix:
			if is.Path = strings.TrimRight(is.Path, "/"); is.Path == "" {
				is.Path = "/"
			}
		case gatewayv1.PathMatchRegularExpression:
			is.Kind = Regex
			if err := checkRegex(is.Path); err != nil {
				return is, fmt.Errorf("path %w", err)
			}
		default:
			return is, fmt.Errorf("path: Headgate does not support the type %q", kind)
		}
		if is.Kind != Regex && !strings.HasPrefix(is.Path, "/") {
			return is, fmt.Errorf("path %q does not begin with /", is.Path)
		}
	}
	is.Method = string(ptr.Deref(m.Method, ""))
	wanted := make([]Value, len(m.Headers))
	for i, h := range m.Headers {
		wanted[i] = Value{
			strings.ToLower(string(h.Name)), h.Value,
			ptr.Deref(h.Type, gatewayv1.HeaderMatchExact) == gatewayv1.HeaderMatchRegularExpression,
		}
	}
	var err error
	if is.Headers, err = values("header", wanted); err != nil {
		return is, err
	}
	wanted = make([]Value, len(m.QueryParams))
	for i, q := range m.QueryParams {
		wanted[i] = Value{
			string(q.Name), q.Value,
			ptr.Deref(q.Type, gatewayv1.QueryParamMatchExact) == gatewayv1.QueryParamMatchRegularExpression,
		}
	}
	is.Query, err = values("query parameter", wanted)
	return is, err
}

// values checks the required headers or query parameters. If several have the same name, it returns
// only the first, as Gateway API requires.
func values(kind string, wanted []Value) (all []Value, err error) {
	seen := make(map[string]bool)
	for _, v := range wanted {
		if seen[v.Name] {
			continue
		}
		seen[v.Name] = true
		if v.Regex {
			if err := checkRegex(v.Value); err != nil {
				return nil, fmt.Errorf("%s %s %w", kind, v.Name, err)
			}
		}
		all = append(all, v)
	}
	return all, nil
}

// MaxProgram is the maximum size of a regular expression, as programSize estimates it. Envoy
// rejects a too large RE2 program together with all routes of its listener. Envoy's limit must be
// higher than MaxProgram, since the real program may be larger than the estimate.
const MaxProgram = 1000

// checkRegex returns why Envoy would reject a regular expression. Go uses the same syntax as RE2.
func checkRegex(text string) error {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return fmt.Errorf("%q is not a regular expression: %w", text, err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return fmt.Errorf("%q is not a regular expression: %w", text, err)
	}
	if size := programSize(program); size > MaxProgram {
		return fmt.Errorf("%q is too large: it has %d steps, but the limit is %d; use fewer or smaller repetitions", text, size, MaxProgram)
	}
	return nil
}

// programSize estimates the size of an expression's RE2 program, which matches bytes. Each range of
// a character class is one instruction. A non-ASCII character takes up to four, and a range of them
// up to four for each possible first byte.
func programSize(p *syntax.Prog) int {
	size := 0
	for _, i := range p.Inst {
		size += max(1, len(i.Rune)/2)
		for at := 1; at < len(i.Rune); at += 2 {
			if i.Rune[at] > 0x7f {
				size += 12
			}
		}
		if i.Op == syntax.InstRuneAny || i.Op == syntax.InstRuneAnyNotNL {
			size += 12
		}
	}
	return size
}
