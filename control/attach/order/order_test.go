package order_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/test/golden"
)

// short maps short names to the type URLs of resources.
var short = map[string]string{
	"endpoints": order.Endpoints, "clusters": order.Clusters, "secrets": order.Secrets,
	"listeners": order.Listeners, "routes": order.Routes,
}

func shortOf(of string) string {
	for name, url := range short {
		if url == of {
			return name
		}
	}
	return of
}

// Each line of a block is an event, and all blocks of a file share one Stream:
//
//	have clusters a=1 b=2        the resources of a type are now these, with versions
//	ask routes p [-q] [had p=1]  Envoy subscribes to p, or to all resources without a name;
//	                             -q unsubscribes from q; "had" lists the versions that Envoy has
//	take clusters                Envoy accepts the last response of a type
//	refuse clusters              Envoy rejects the last response of a type
//	show                         the state is printed
//
// The output is the responses that are sent after each line.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		s, to, last := order.New(), order.Snapshot{}, make(map[string]string)
		return func(input string) string {
			var out strings.Builder
			for line := range strings.SplitSeq(strings.TrimSpace(input), "\n") {
				verb, rest, _ := strings.Cut(line, " ")
				of, rest, _ := strings.Cut(rest, " ")
				switch verb {
				case "show":
					fmt.Fprint(&out, s)
					continue
				case "have":
					to = maps.Clone(to)
					to[short[of]] = make(map[string]order.Resource)
					for name, version := range versions(rest) {
						to[short[of]][name] = order.Resource{Version: version}
					}
				case "ask":
					r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: short[of]}
					names, had, _ := strings.Cut(rest, "had ")
					for name := range strings.FieldsSeq(names) {
						if gone, ok := strings.CutPrefix(name, "-"); ok {
							r.ResourceNamesUnsubscribe = append(r.ResourceNamesUnsubscribe, gone)
						} else {
							r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, name)
						}
					}
					r.InitialResourceVersions = versions(had)
					if a, ok := s.Hear(r); ok {
						t.Errorf("%s: Hear returns the answer %v", line, a)
					}
				case "take", "refuse":
					r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: short[of], ResponseNonce: last[short[of]]}
					if verb == "refuse" {
						r.ErrorDetail = &rpcv3.Status{Message: "no"}
					}
					a, ok := s.Hear(r)
					fmt.Fprintf(&out, "answers %v %v %v %s\n", ok, a.Names, a.Versions, a.Refused)
				default:
					t.Fatalf("unknown line: %s", line)
				}
				for _, r := range s.Next(to) {
					last[r.GetTypeUrl()] = r.GetNonce()
					fmt.Fprintf(&out, "after %s: %s\n", line, tell(r))
				}
			}
			return out.String()
		}
	})
}

func versions(text string) map[string]string {
	all := make(map[string]string)
	for word := range strings.FieldsSeq(text) {
		name, version, _ := strings.Cut(word, "=")
		all[name] = version
	}
	return all
}

func tell(r *discoveryv3.DeltaDiscoveryResponse) string {
	words := []string{shortOf(r.GetTypeUrl())}
	for _, resource := range r.GetResources() {
		words = append(words, resource.GetName()+"="+resource.GetVersion())
	}
	for _, name := range r.GetRemovedResources() {
		words = append(words, "-"+name)
	}
	return strings.Join(words, " ")
}

// envoy is a model of an Envoy. Its responses are answered in the order of their arrival.
type envoy struct {
	s     *order.Stream
	has   map[string]map[string]string // body of each resource by type and name
	inbox []*discoveryv3.DeltaDiscoveryResponse
	asked map[string]bool // names of subscribed routes
}

func (e *envoy) ask(of string, names ...string) {
	e.s.Hear(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: of, ResourceNamesSubscribe: names})
}

// take answers the first queued response. If refuse is set, it may reject routes.
func (e *envoy) take(refuse bool) {
	r := e.inbox[0]
	e.inbox = e.inbox[1:]
	of := r.GetTypeUrl()
	if refuse && of == order.Routes && len(r.GetResources()) > 0 {
		e.s.Hear(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: of, ResponseNonce: r.GetNonce(), ErrorDetail: &rpcv3.Status{Message: "no"}})
		return
	}
	for _, resource := range r.GetResources() {
		if of == order.Routes && !e.asked[resource.GetName()] {
			continue // Envoy has unsubscribed from it
		}
		e.has[of][resource.GetName()] = string(resource.GetResource().GetValue())
	}
	for _, name := range r.GetRemovedResources() {
		delete(e.has[of], name)
	}
	e.s.Hear(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: of, ResponseNonce: r.GetNonce()})
	if of != order.Listeners {
		return
	}
	for name := range e.has[order.Listeners] { // a listener uses the routes of the same name
		if !e.asked[name] {
			e.asked[name] = true
			e.ask(order.Routes, name)
		}
	}
	for name := range e.asked {
		if _, there := e.has[order.Listeners][name]; !there {
			delete(e.asked, name)
			delete(e.has[order.Routes], name)
			e.s.Hear(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: order.Routes, ResourceNamesUnsubscribe: []string{name}})
		}
	}
}

// missing returns a cluster that the routes of a listener name and that Envoy lacks; empty if there
// is none.
func (e *envoy) missing() string {
	for name, body := range e.has[order.Routes] {
		for cluster := range strings.FieldsSeq(body) {
			if _, there := e.has[order.Clusters][cluster]; !there {
				return fmt.Sprintf("the routes %s name %s, and there are %v", name, cluster,
					slices.Sorted(maps.Keys(e.has[order.Clusters])))
			}
		}
	}
	return ""
}

// Whatever changes while answers are under way, no route names a missing cluster, and no type has
// two unanswered responses. In the end Envoy has all resources, and nothing more is sent.
func TestRoutesFollowTheirClusters(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 7))
		e := &envoy{
			s: order.New(), asked: make(map[string]bool),
			has: map[string]map[string]string{order.Clusters: {}, order.Listeners: {}, order.Routes: {}},
		}
		to := snapshot(r, 0)
		send := func() {
			t.Helper()
			e.inbox = append(e.inbox, e.s.Next(to)...)
			under := make(map[string]int)
			for _, r := range e.inbox {
				if under[r.GetTypeUrl()]++; under[r.GetTypeUrl()] > 1 {
					t.Fatalf("seed %d: two responses for %s are under way\n%s", seed, shortOf(r.GetTypeUrl()), e.s)
				}
			}
			if m := e.missing(); m != "" {
				t.Fatalf("seed %d: %s\n%s", seed, m, e.s)
			}
		}
		e.ask(order.Clusters)
		send()
		e.ask(order.Listeners)
		send()
		for n := range 60 {
			if len(e.inbox) > 0 && r.IntN(3) > 0 {
				e.take(r.IntN(6) == 0)
			} else {
				to = snapshot(r, n)
			}
			send()
		}
		to = snapshot(r, -1) // nothing in this snapshot is rejected
		send()
		for len(e.inbox) > 0 {
			e.take(false)
			send()
		}
		for of, want := range to {
			if len(e.has[of]) != len(want) {
				t.Fatalf("seed %d: for %s the Envoy has %v, want %v\n%s", seed, shortOf(of), e.has[of], want, e.s)
			}
			for name, resource := range want {
				if got := e.has[of][name]; got != string(resource.Body.GetValue()) {
					t.Fatalf("seed %d: %s %s is %q, want %q\n%s", seed, shortOf(of), name, got, resource.Body.GetValue(), e.s)
				}
			}
		}
	}
}

// snapshot returns the nth snapshot. It is consistent: its routes name only its clusters, and each
// listener has routes.
func snapshot(r *rand.Rand, n int) order.Snapshot {
	to := order.Snapshot{order.Clusters: {}, order.Listeners: {}, order.Routes: {}}
	add := func(of, name, body string) {
		to[of][name] = order.Resource{Version: fmt.Sprint(body, n/7), Body: &anypb.Any{Value: []byte(body)}}
	}
	for _, name := range []string{"p", "q"} {
		if r.IntN(4) == 0 {
			continue
		}
		add(order.Listeners, name, fmt.Sprint("listener", r.IntN(2)))
		var names []string
		for _, cluster := range []string{"a", "b", "c", "d"} {
			if r.IntN(2) == 0 {
				names = append(names, cluster)
			}
		}
		add(order.Routes, name, strings.Join(names, " "))
		for _, cluster := range names {
			add(order.Clusters, cluster, fmt.Sprint(cluster, r.IntN(2)))
		}
	}
	return to
}

// A NACK whose error has no message is still a NACK.
func TestNACKWithoutAMessage(t *testing.T) {
	s := order.New()
	s.Hear(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: order.Clusters})
	sent := s.Next(order.Snapshot{order.Clusters: {"a": {Version: "1"}}})
	a, ok := s.Hear(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: order.Clusters, ResponseNonce: sent[0].GetNonce(),
		ErrorDetail: new(rpcv3.Status),
	})
	if !ok || a.Refused == "" {
		t.Errorf("the answer is %+v (%v)", a, ok)
	}
}
