package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/golden"
	"github.com/headgate/headgate/test/network"
)

// The input of a block is objects in YAML, beside those of [network.Standard]; what comes out is the plan.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			n := network.Read(t, network.Standard(input))
			a := attach.Of(n)
			told := show(plan.Of(a, n, certificates))
			if secrets := plan.Secrets(a, n); len(secrets) > 0 {
				told += fmt.Sprintf("reads %v\n", secrets)
			}
			return told
		}
	})
}

// certificates are what is known of Secrets.
var certificates = map[objects.Name]plan.Certificate{
	{Namespace: "ns", Name: "cert"}:    {Chain: []byte("chain"), Key: []byte("key")},
	{Namespace: "other", Name: "cert"}: {Chain: []byte("chain"), Key: []byte("key")},
	{Namespace: "ns", Name: "broken"}:  {Fault: "tls.key does not fit tls.crt"},
	{Namespace: "ns", Name: "missing"}: {Fault: "there is no such Secret"},
}

// show tells plans for people.
func show(p *plan.Plans) string {
	var out strings.Builder
	line := func(indent int, format string, args ...any) {
		fmt.Fprintf(&out, strings.Repeat("  ", indent)+format+"\n", args...)
	}
	for _, g := range p.Gateways {
		for _, port := range g.Ports {
			for _, l := range port.Listeners {
				with := ""
				if len(l.Certificates) > 0 {
					with = fmt.Sprintf(" with %v", l.Certificates)
				}
				line(0, "%s, %s:%d%s", l, l.Protocol, port.Number, with)
				for _, h := range l.Hosts {
					line(1, "%q", h.Domain)
					for _, r := range h.Rules {
						line(2, "%s", rule(r))
					}
				}
			}
		}
		for _, c := range g.Clusters {
			words := ""
			if c.H2C {
				words = " by HTTP/2"
			}
			line(0, "cluster %s%s", c.Name, words)
		}
	}
	var faults []string
	for l, v := range p.Listeners {
		faults = append(faults, fmt.Sprintf("%s refs: %s %s", l, v.Reason, v.Words))
	}
	slices.Sort(faults)
	for _, fault := range faults {
		line(0, "%s", fault)
	}
	for _, of := range slices.SortedFunc(maps.Keys(p.Routes), func(a, b objects.Object) int { return strings.Compare(a.String(), b.String()) }) {
		v := p.Routes[of]
		for what, words := range map[string]string{"refused": v.Refused.Reason + " " + v.Refused.Words, "partly": v.Partly, "refs": v.Refs.Reason + " " + v.Refs.Words} {
			if strings.TrimSpace(words) != "" {
				line(0, "%s %s: %s", of, what, words)
			}
		}
	}
	return out.String()
}

func rule(r plan.Rule) string {
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	add("%s%s", []string{"", "~", "="}[r.Match.Kind], r.Match.Path)
	if r.Match.Method != "" {
		add("%s", r.Match.Method)
	}
	for _, v := range r.Match.Headers {
		add("%s%s%s", v.Name, map[bool]string{true: "~", false: "="}[v.Regex], v.Value)
	}
	for _, v := range r.Match.Query {
		add("?%s%s%s", v.Name, map[bool]string{true: "~", false: "="}[v.Regex], v.Value)
	}
	add("->")
	switch {
	case r.Status != 0:
		add("%d", r.Status)
	case r.Redirect != nil:
		add("redirect %d %s://%s:%d%s", r.Redirect.Code, r.Redirect.Scheme, r.Redirect.Host, r.Redirect.Port, path(r.Redirect.Path))
	case r.Forward.Models:
		add("by model")
	default:
		for _, b := range r.Forward.Backends {
			add("%d*%s%s", b.Weight, b.Cluster, headers(b.Request, b.Response))
		}
		if r.Forward.Host != "" {
			add("as host %s", r.Forward.Host)
		}
		if r.Forward.Path != nil {
			add("as path%s", path(r.Forward.Path))
		}
		for _, m := range r.Forward.Mirrors {
			add("and %d/%d to %s", m.Share, m.Of, m.Cluster)
		}
		if r.Forward.Timeout+r.Forward.TryTimeout > 0 {
			add("within %v, each try %v", r.Forward.Timeout, r.Forward.TryTimeout)
		}
	}
	if h := headers(r.Request, r.Response); h != "" {
		add("with%s", h)
	}
	if r.CORS != nil {
		add("CORS")
	}
	if r.Of != (objects.Object{}) {
		name := strconv.Itoa(r.Index)
		if r.Name != "" {
			name = r.Name
		}
		add("(%s %s)", r.Of, name)
	}
	return strings.Join(words, " ")
}

func path(p *plan.PathChange) string {
	switch {
	case p == nil:
		return ""
	case p.Whole:
		return " " + p.With
	}
	return " " + p.With + "..."
}

func headers(request, response plan.Headers) string {
	var words []string
	tell := func(side string, h plan.Headers) {
		for _, name := range h.Remove {
			words = append(words, fmt.Sprintf("%s -%s", side, name))
		}
		for verb, all := range map[string][]gatewayv1.HTTPHeader{"=": h.Set, "+=": h.Add} {
			for _, header := range all {
				words = append(words, fmt.Sprintf("%s %s%s%s", side, header.Name, verb, header.Value))
			}
		}
	}
	tell("request", request)
	tell("response", response)
	if len(words) == 0 {
		return ""
	}
	slices.Sort(words)
	return "[" + strings.Join(words, ", ") + "]"
}
