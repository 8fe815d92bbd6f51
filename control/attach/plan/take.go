package plan

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/headgate/headgate/internal/attach"
)

// Request is the part of a request that rules match.
type Request struct {
	// Host is the Host header, with or without a port.
	Host string
	// Path may include a query string.
	Path   string
	Method string
	// Headers contains header values by name. Names may be in upper or lower case.
	Headers map[string]string
}

// Taken is the result of matching a request with the rules of a port.
type Taken struct {
	// Listener and Host match the host of the request. They are nil if none does: the request gets
	// 404.
	Listener *Listener
	Host     *Host
	// Rule is the first rule of Host that matches; nil if none does: the request gets 404.
	Rule *Rule
	// Passed are the rules before Rule, which do not match.
	Passed []Passed
}

// Passed is a rule that does not match a request.
type Passed struct {
	*Rule
	// Why is why the rule does not match. It does not name the rule.
	Why string
}

// Take finds the rule that handles a request.
func (p *Port) Take(r Request) Taken {
	var t Taken
	host, _, _ := strings.Cut(strings.ToLower(r.Host), ":")
	for i := range p.Listeners {
		l := &p.Listeners[i]
		for j := range l.Hosts {
			h := &l.Hosts[j]
			if both, ok := attach.Intersect(h.Domain, host); ok && both == host &&
				(t.Host == nil || attach.MoreSpecific(h.Domain, t.Host.Domain)) {
				t.Listener, t.Host = l, h
			}
		}
	}
	if t.Host == nil {
		return t
	}
	for i := range t.Host.Rules {
		rule := &t.Host.Rules[i]
		why := rule.Match.misses(r)
		if why == "" {
			t.Rule = rule
			return t
		}
		t.Passed = append(t.Passed, Passed{rule, why})
	}
	return t
}

// misses returns why a request does not match; empty if it matches.
func (m *Match) misses(r Request) string {
	path, query, _ := strings.Cut(r.Path, "?")
	switch {
	case m.Kind == Exact && path != m.Path:
		return "it is for the path " + m.Path + " alone"
	case m.Kind == Regex && !fitsWhole(m.Path, path):
		return "its expression " + m.Path + " does not fit the whole path"
	case m.Kind == Prefix && path != m.Path && !strings.HasPrefix(path, strings.TrimSuffix(m.Path, "/")+"/"):
		return "it is for paths below " + m.Path
	case m.Method != "" && m.Method != r.Method:
		return "it is for the method " + m.Method
	}
	for _, want := range m.Headers {
		is, given := "", false
		for name, value := range r.Headers {
			if strings.EqualFold(name, want.Name) {
				is, given = value, true
			}
		}
		if why := want.misses("header", is, given); why != "" {
			return why
		}
	}
	for _, want := range m.Query {
		is, given := "", false
		for part := range strings.SplitSeq(query, "&") {
			if name, value, _ := strings.Cut(part, "="); name == want.Name && !given {
				is, given = value, true
			}
		}
		if why := want.misses("query parameter", is, given); why != "" {
			return why
		}
	}
	return ""
}

func (v Value) misses(kind, is string, given bool) string {
	switch {
	case !given:
		return fmt.Sprintf("it needs the %s %s", kind, v.Name)
	case v.Regex && !fitsWhole(v.Value, is), !v.Regex && is != v.Value:
		return fmt.Sprintf("it needs the %s %s with the value %s", kind, v.Name, v.Value)
	}
	return ""
}

// fitsWhole reports whether a regular expression, which is valid, matches a whole text.
func fitsWhole(expression, text string) bool {
	is, err := regexp.Compile("^(?:" + expression + ")$")
	return err == nil && is.MatchString(text)
}
