package plan

import (
	"cmp"
	"fmt"
	"regexp/syntax"
	"strings"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// PathKind is how a path must be for a request to fit.
type PathKind int

// Kinds of paths, the less specific first: Gateway API orders Exact before PathPrefix, and leaves RegularExpression to us.
const (
	// Prefix is of whole elements: /a fits /a and /a/b, and not /ab.
	Prefix PathKind = iota
	// Regex fits the whole path.
	Regex
	Exact
)

// Match says which requests fit: those that fit all of it.
type Match struct {
	Kind PathKind
	Path string
	// Method is empty for every method.
	Method string
	// Headers and Query are to have these values.
	Headers, Query []Value
	// AnyService says that the path is a method of gRPC of whatever service. It is less specific than a service (GRPCRoute,
	// spec.rules.matches).
	AnyService bool
}

// Value is a header or query parameter with the value that it is to have: all of it, or an expression that fits all of it.
type Value struct {
	Name, Value string
	Regex       bool
}

// compare says which of two matches is more specific: above 0 if m is.
func (m Match) compare(o Match) int {
	// A method of any service is between every path and the paths of one service.
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

// matchOf returns a match of an HTTPRoute, or why it cannot be.
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
			return is, fmt.Errorf("path: the type %q is none that Headgate knows", kind)
		}
		if is.Kind != Regex && !strings.HasPrefix(is.Path, "/") {
			return is, fmt.Errorf("path %q does not begin with /", is.Path)
		}
	}
	is.Method = string(ptr.Deref(m.Method, ""))
	wanted := make([]Value, len(m.Headers))
	for i, h := range m.Headers {
		wanted[i] = Value{strings.ToLower(string(h.Name)), h.Value, ptr.Deref(h.Type, gatewayv1.HeaderMatchExact) == gatewayv1.HeaderMatchRegularExpression}
	}
	var err error
	if is.Headers, err = values("header", wanted); err != nil {
		return is, err
	}
	wanted = make([]Value, len(m.QueryParams))
	for i, q := range m.QueryParams {
		wanted[i] = Value{string(q.Name), q.Value, ptr.Deref(q.Type, gatewayv1.QueryParamMatchExact) == gatewayv1.QueryParamMatchRegularExpression}
	}
	is.Query, err = values("query parameter", wanted)
	return is, err
}

// values returns what a match wants of headers, or of query parameters, in words for people: of each name the first, by the
// specification.
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

// MaxProgram bounds the steps of an expression's program, as they are counted here. Envoy refuses an expression whose RE2 program is
// larger than it is told to take, and with it all routes of their listener: it is to be told of a larger one, for RE2 may need some
// steps more.
const MaxProgram = 1000

// checkRegex says what is wrong with an expression, which is of RE2's syntax as Go's are.
func checkRegex(text string) error {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return fmt.Errorf("%q is no regular expression: %w", text, err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return fmt.Errorf("%q is no regular expression: %w", text, err)
	}
	if size := programSize(program); size > MaxProgram {
		return fmt.Errorf("%q is too large a regular expression: it has %d steps, and may have %d; write fewer or smaller repetitions", text, size, MaxProgram)
	}
	return nil
}

// programSize is about the size of an expression's program in RE2, which works on bytes: each range of a class is a step there, a
// character beyond ASCII is up to four, and a range of them as many as there are ways to begin.
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
