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

// Kinds of paths, less specific ones first. Gateway API orders Exact before PathPrefix, and leaves
// RegularExpression open.
const (
	// Prefix matches whole path elements: /a matches /a and /a/b, but not /ab.
	Prefix PathKind = iota
	// Regex matches the whole path.
	Regex
	Exact
)

// Match matches requests that fulfil all of its conditions.
type Match struct {
	Kind PathKind
	Path string
	// Method is empty for any method.
	Method string
	// Headers and Query must have these values.
	Headers, Query []Value
	// AnyService reports that the path is a gRPC method of any service, which is less specific than
	// a service (GRPCRoute, spec.rules.matches).
	AnyService bool
}

// Value is the required value of a header or query parameter: exact, or a regular expression that
// matches all of it.
type Value struct {
	Name, Value string
	Regex       bool
}

// compare returns which match is more specific: above 0 if m is.
func (m Match) compare(o Match) int {
	// A method of any service sorts between other paths and the paths of one service.
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

// matchOf returns a match of an HTTPRoute, or why it is invalid.
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

// values returns the required headers or query parameters. Of several with one name the first
// counts, as the specification says.
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

// MaxProgram is the largest size of a regular expression, as estimated here. Envoy rejects larger
// RE2 programs, and with one all routes of its listener. Envoy's limit must be higher, since RE2
// may need some more instructions.
const MaxProgram = 1000

// checkRegex returns the error of a regular expression. Go has RE2's syntax.
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

// programSize estimates the size of an expression's RE2 program, which works on bytes: each range
// of a class is an instruction, a character beyond ASCII up to four, and a range of these one for
// each possible first byte.
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
