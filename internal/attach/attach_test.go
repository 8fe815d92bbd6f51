package attach_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/golden"
	"github.com/headgate/headgate/test/network"
)

// The input of a block is objects in YAML; the output is their attachments.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/[^o]*.txt", func(t *testing.T) func(string) string {
		return func(input string) string { return show(attach.Of(network.Read(t, input))) }
	})
}

// The input of a block is objects in YAML; the output is the offer of each listener and of the
// static data plane.
func TestOffers(t *testing.T) {
	golden.Run(t, "testdata/offers.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			w := objects.Build(network.Set(t, network.Standard(input)))
			offers := attach.Of(w.Network).Offers(w)
			var out strings.Builder
			tell := func(name string, o *objects.Offer) {
				fmt.Fprintf(&out, "%s of %q\n", name, o.Gateway)
				for _, m := range o.Models() {
					r := o.Route(m.Name)
					fmt.Fprintf(&out, "  %s: %s %s to %v, adapter %q\n", m.Name, r.Kind, r.Name, r.Backends, r.Adapter)
				}
				for _, r := range o.Routes {
					fmt.Fprintf(&out, "  %s has %q\n", r.Name, r.Models)
				}
				fmt.Fprintf(&out, "  pools %v\n", o.Pools())
			}
			for _, name := range slices.Sorted(maps.Keys(offers)) {
				tell(name, offers[name])
			}
			tell("everywhere", &w.Offer)
			return out.String()
		}
	})
}

// show formats attachments.
func show(a *attach.Attachments) string {
	var out strings.Builder
	line := func(indent int, format string, args ...any) {
		fmt.Fprintf(&out, strings.Repeat("  ", indent)+format+"\n", args...)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Classes)) {
		if v := a.Classes[name].Refused; v != (attach.Verdict{}) {
			line(0, "GatewayClass %s%s", name, verdict(v))
		}
	}
	for _, g := range a.Gateways {
		line(0, "Gateway %s%s", g.Name, verdict(g.Refused))
		if said, _ := yaml.Marshal(g.Settings); string(said) != "{}\n" {
			line(1, "%s", strings.ReplaceAll(strings.TrimSpace(string(said)), "\n", "\n  "))
		}
		for _, s := range g.Sets {
			line(1, "ListenerSet %s%s", s.Name, verdict(s.Refused))
		}
		for _, l := range g.Listeners {
			var kinds []string
			for _, k := range l.Kinds {
				kinds = append(kinds, string(k.Kind))
			}
			if l.OtherKinds {
				kinds = append(kinds, "and others")
			}
			line(1, "%s %s:%d %q for %s%s", l, l.Protocol, l.Port, l.Hostname, strings.Join(kinds, " "), verdict(l.Refused))
			for _, r := range l.Routes {
				line(2, "%s %q", r.Route, r.Hostnames)
			}
			if len(l.Pools) > 0 {
				line(2, "pools that no LLMRoute names: %v", l.Pools)
			}
		}
	}
	for _, route := range slices.SortedFunc(maps.Keys(a.Parents), func(a, b objects.Object) int {
		return strings.Compare(a.String(), b.String())
	}) {
		line(0, "%s", route)
		for _, p := range a.Parents[route] {
			section := ""
			if p.Ref.SectionName != nil {
				section = "/" + string(*p.Ref.SectionName)
			}
			line(1, "%s%s of Gateway %s%s", p.Ref.Name, section, p.Gateway.Name, verdict(p.Refused))
		}
	}
	return out.String()
}

func verdict(v attach.Verdict) string {
	if v == (attach.Verdict{}) {
		return ""
	}
	return ": " + v.Reason + ": " + v.Message
}

// hosts are hostnames that distinguish the tests' patterns.
var hosts = []string{"test", "a.test", "b.test", "x.a.test", "y.x.a.test", "aa.test", "xtest", "x.b.test"}

// fits reports whether a hostname matches a pattern, by Gateway API's definition.
func fits(pattern, host string) bool {
	if pattern == "" {
		return true
	}
	if suffix, wild := strings.CutPrefix(pattern, "*."); wild {
		labels, of := strings.Split(host, "."), strings.Split(suffix, ".")
		return len(labels) > len(of) && slices.Equal(labels[len(labels)-len(of):], of)
	}
	return pattern == host
}

func TestIntersectionOfPatterns(t *testing.T) {
	patterns := append([]string{"", "*.test", "*.a.test", "*.b.test", "*.x.a.test", "*.other"}, hosts...)
	for _, a := range patterns {
		for _, b := range patterns {
			both, some := attach.Intersect(a, b)
			any := false
			for _, host := range append([]string{"elsewhere"}, hosts...) {
				want := fits(a, host) && fits(b, host)
				any = any || want
				if got := some && fits(both, host); got != want {
					t.Errorf("%q and %q have %q (%v): %s fits it: %v, want %v", a, b, both, some, host, got, want)
				}
			}
			if some && !any && a != "*.other" && b != "*.other" {
				t.Errorf("%q and %q have %q in common, and nothing fits both", a, b, both)
			}
			// If two patterns match a host, the one that matches fewer hosts wins.
			if some && a != b && attach.MoreSpecific(a, b) != (both == a) {
				t.Errorf("%q is more specific than %q: %v", a, b, attach.MoreSpecific(a, b))
			}
		}
	}
}
