package e2e

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/process"
)

// extension is a stack for the conformance cases of the inference extension: two Gateways with one
// Envoy each, pools of servers that identify themselves, and an endpoint picker that obeys the
// suite's headers.
type extension struct {
	*stack
	second *stack // the Envoy of the second Gateway
	picker *process.Process
}

// host returns the address of a pod. Pods 61 to 63 belong to the pool primary, 71 to 73 to the pool
// secondary, and 81 to 83, with three ports each, to the pool ranks.
func (e *extension) host(n int) string {
	return fmt.Sprintf("%s%d", strings.TrimSuffix(e.Listen, "1:8080"), n)
}

func startExtension(t *testing.T) *extension {
	t.Helper()
	s := start(t, throughGateway, pods(t, 1))
	e := &extension{stack: s, picker: s.picker("primary")}
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	var text strings.Builder
	for name, first := range map[string]int{"primary": 61, "secondary": 71, "ranks": 81} {
		ports := []string{"3000"}
		if name == "ranks" {
			ports = append(ports, "3002", "3004")
		}
		for n := first; n < first+3; n++ {
			for _, port := range ports {
				e.engine(t, net.JoinHostPort(e.host(n), port), http1)
			}
			fmt.Fprintf(&text, "apiVersion: v1\nkind: Pod\nmetadata: {name: pod-%d, labels: {app: %s}}\nstatus: {podIP: %s}\n---\n", n,
				name, e.host(n))
		}
		text.WriteString(aPool(name, "app: "+name, "{number: "+strings.Join(ports, "}, {number: ")+"}", ", endpointPickerRef: {name: "+name+
			"-epp, port: {number: 9002}}") + e.epp(name))
	}
	s.write("pods.yaml", strings.TrimSuffix(text.String(), "---\n"))
	second := strings.Split(aGateway(e.host(2)), "---\n")[1]
	s.write("second.yaml", strings.Replace(second, "name: gateway}", "name: second}", 1))
	beside, copied := *s, *s.Rig
	e.second, beside.Rig = &beside, &copied
	beside.Gateway, beside.Admin, beside.Listen, beside.url = "default/second", e.host(2)+":9901", e.host(2)+":8080", "http://"+
		e.host(2)+":8080"
	if err := beside.StartEnvoy(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { beside.Envoy.Stop(5 * time.Second) })
	return e
}

// aPool returns the YAML of an InferencePool with a label selector, ports and more fields of the
// spec.
func aPool(name, labels, ports, more string) string {
	return fmt.Sprintf("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: %s}\nspec: {selector: {matchLabels: {%s}}, targetPorts: [%s]%s}\n---\n",
		name, labels,
		ports, more)
}

// epp returns the YAML of the Service of a pool's endpoint picker.
func (e *extension) epp(pool string) string {
	return pickerService(pool, plain, e.pickerHost()+":9002")
}

// route returns the YAML of an HTTPRoute that is attached to a Gateway, for the host NAME.test.
func route(name, gateway string, rules ...string) string {
	return fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: %s}\nspec:\n  parentRefs: [{name: %s}]\n  hostnames: [%s.test]\n  rules: [%s]\n---\n", name,
		gateway, name,
		strings.Join(rules, ", "))
}

// to returns the YAML of a rule that sends requests to a pool. The parameters rule and ref contain
// more fields of the rule and of its reference to the pool.
func to(pool, rule, ref string) string {
	return fmt.Sprintf("{%sbackendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: %s%s}]}", rule, pool, ref)
}

// apply replaces the objects of the previous case by docs.
func (e *extension) apply(docs ...string) {
	e.t.Helper()
	e.write("case.yaml", strings.TrimSuffix(strings.Join(docs, ""), "---\n"))
}

// get sends a GET request for a path at the host of a route to a stack's Gateway.
func get(s *stack, route, path, selection string) answer {
	q := at(route, request{method: "GET", path: path})
	if selection != "" {
		q.header["Test-Epp-Endpoint-Selection"] = selection
	}
	a, err := s.ask(s.t.Context(), q)
	if err != nil {
		return answer{} // the Gateway's Envoy is not running yet
	}
	return a
}

// served waits until a pod of a pool answers requests for a route. The numbers of the pool's pods
// begin with the digit by.
func (e *extension) served(s *stack, route, path string, by int) {
	e.t.Helper()
	e.await(route+".test"+path+" is served by its pool", func() bool {
		a := get(s, route, path, "")
		return a.status == http.StatusOK && strings.HasPrefix(a.served, e.host(by))
	})
}

// conditions computes an object's status from the objects in the folder. It returns the conditions
// of each parent, formatted as "TYPE STATUS REASON".
func (e *extension) conditions(kind, name string) map[string][]string {
	e.t.Helper()
	set, err := dir.Read(e.objects, kinds.WithNetwork())
	if err != nil {
		e.t.Fatal(err)
	}
	a := attach.Of(set.Network)
	for _, s := range conditions.Of(conditions.Input{Attachments: a, Plans: plan.Of(a, set.Network, plan.Known{}), Network: set.Network}) {
		if s.Object != (objects.Object{Kind: kind, Name: objects.Name{Namespace: "default", Name: name}}) {
			continue
		}
		all := make(map[string][]string)
		for _, p := range s.Parents {
			for _, c := range p.Conditions {
				all[string(p.Ref.Name)] = append(all[string(p.Ref.Name)], c.Type+" "+string(c.Status)+" "+c.Reason)
			}
		}
		return all
	}
	e.t.Fatalf("there is no status of %s %s", kind, name)
	return nil
}

// says checks the status and reason of one condition of an object at a Gateway.
func (e *extension) says(kind, name, gateway string, of string, is metav1.ConditionStatus, reason string) {
	e.t.Helper()
	all := e.conditions(kind, name)
	if !slices.Contains(all[gateway], of+" "+string(is)+" "+reason) {
		e.t.Errorf("%s %s says %v, want %s %s %s of %s", kind, name, all, of, is, reason, gateway)
	}
}

// The subtests are the cases of the inference extension's conformance suite for gateways and have
// their names. Requests go through a real Envoy of a Gateway read from a folder; the status is
// computed from the same objects.
func TestInferenceExtensionConformance(t *testing.T) {
	runs(t)
	e := startExtension(t)
	const primary, secondary, ranks = 6, 7, 8
	for _, c := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"InferencePoolAccepted", func(*testing.T) {
			e.apply(route("accepted", "gateway", to("primary", "", "")))
			e.says(pool.Kind, "primary", "gateway", "Accepted", metav1.ConditionTrue, "Accepted")
			e.served(e.stack, "accepted", "/", primary)
		}},
		{"InferencePoolResolvedRefsCondition", func(t *testing.T) {
			first, second := route("first", "gateway", to("primary", "", "")), route("second", "second", to("primary", "", ""))
			e.apply(first, second)
			e.served(e.stack, "first", "/", primary)
			e.served(e.second, "second", "/", primary)
			for _, gateway := range []string{"gateway", "second"} {
				e.says(pool.Kind, "primary", gateway, "Accepted", metav1.ConditionTrue, "Accepted")
				e.says(pool.Kind, "primary", gateway, "ResolvedRefs", metav1.ConditionTrue, "ResolvedRefs")
			}
			e.apply(second)
			e.await("the first is gone", func() bool { return get(e.stack, "first", "/", "").status == http.StatusNotFound })
			e.served(e.second, "second", "/", primary)
			if all := e.conditions(pool.Kind, "primary"); len(all) != 1 || all["second"] == nil {
				t.Errorf("with one route the pool says %v", all)
			}
			e.apply()
			e.await("the second is gone", func() bool { return get(e.second, "second", "/", "").status == http.StatusNotFound })
			if all := e.conditions(pool.Kind, "primary"); len(all) > 0 {
				t.Errorf("without a route the pool says %v", all)
			}
		}},
		{"InferencePoolInvalidEPPService", func(*testing.T) {
			e.apply(aPool("invalid", "app: primary", "{number: 3000}",
				", endpointPickerRef: {name: no-such-service, port: {number: 9002}}"), route("invalid", "gateway", to("invalid", "", "")))
			e.says(pool.Kind, "invalid", "gateway", "ResolvedRefs", metav1.ConditionFalse, "InvalidExtensionRef")
			e.await("requests fail", func() bool { return get(e.stack, "invalid", "/", "").status >= 500 })
		}},
		{"InferencePoolMissingEPPRef", func(*testing.T) {
			e.apply(aPool("missing", "app: primary", "{number: 3000}", ""), route("missing", "gateway", to("missing", "", "")))
			e.says(pool.Kind, "missing", "gateway", "Accepted", metav1.ConditionTrue, "Accepted")
			e.served(e.stack, "missing", "/", primary)
		}},
		{"HTTPRouteInvalidInferencePoolRef", func(*testing.T) {
			e.apply(route("nowhere", "gateway", to("no-such-pool", "", "")))
			e.says(objects.HTTPRouteKind, "nowhere", "gateway", "Accepted", metav1.ConditionTrue, "Accepted")
			e.says(objects.HTTPRouteKind, "nowhere", "gateway", "ResolvedRefs", metav1.ConditionFalse, "BackendNotFound")
			e.await("requests fail", func() bool { return get(e.stack, "nowhere", "/", "").status == http.StatusInternalServerError })
		}},
		{"InferencePoolHTTPRoutePortValidation", func(*testing.T) {
			e.apply(route("unset", "gateway", to("primary", "", "")), route("matching", "gateway", to("primary", "", ", port: 3000")),
				route("other", "gateway", to("primary", "", ", port: 8888")))
			for _, name := range []string{"unset", "matching", "other"} {
				e.says(objects.HTTPRouteKind, name, "gateway", "ResolvedRefs", metav1.ConditionTrue, "ResolvedRefs")
				e.served(e.stack, name, "/", primary)
			}
		}},
		{"HTTPRouteMultipleRulesDifferentPools", func(*testing.T) {
			e.apply(route("rules", "gateway", to("primary", "matches: [{path: {type: PathPrefix, value: /primary}}], ", ""),
				to("secondary", "matches: [{path: {type: PathPrefix, value: /secondary}}], ", "")))
			e.served(e.stack, "rules", "/primary", primary)
			e.served(e.stack, "rules", "/secondary", secondary)
		}},
		{"HTTPRouteMultipleGatewaysDifferentPools", func(*testing.T) {
			e.apply(route("here", "gateway", to("primary", "", "")), route("there", "second", to("secondary", "", "")))
			e.served(e.stack, "here", "/", primary)
			e.served(e.second, "there", "/", secondary)
			e.says(pool.Kind, "primary", "gateway", "Accepted", metav1.ConditionTrue, "Accepted")
			e.says(pool.Kind, "secondary", "second", "Accepted", metav1.ConditionTrue, "Accepted")
		}},
		{"GatewayFollowingEPPRouting", func(t *testing.T) {
			e.apply(route("following", "gateway", to("primary", "", "")))
			e.served(e.stack, "following", "/", primary)
			for n := 1; n <= 3; n++ {
				var named []string
				for pod := 61; pod < 61+n; pod++ {
					named = append(named, e.host(pod))
				}
				e.only(t, "following", strings.Join(named, ","), func(served string) bool {
					host, _, _ := net.SplitHostPort(served)
					return slices.Contains(named, host)
				})
			}
		}},
		{"GatewayFollowingEPPRoutingWithDataParallelism", func(t *testing.T) {
			e.apply(route("parallel", "gateway", to("ranks", "", "")))
			e.served(e.stack, "parallel", "/", ranks)
			one := e.host(81) + ":3002"
			e.only(t, "parallel", one, func(served string) bool { return served == one })
			e.only(t, "parallel", e.host(82), func(served string) bool { return strings.HasPrefix(served, e.host(82)+":") })
			e.only(t, "parallel", one+","+e.host(83)+":3004", func(served string) bool {
				return served == one || served == e.host(83)+":3004"
			})
		}},
		{"GatewayWeightedAcrossTwoInferencePools", func(t *testing.T) {
			e.apply(route("weighted", "gateway",
				"{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: primary, weight: 70}, {group: inference.networking.k8s.io, kind: InferencePool, name: secondary, weight: 30}]}"))
			e.served(e.stack, "weighted", "/", primary)
			e.served(e.stack, "weighted", "/", secondary)
			const total, share = 200, 0.7
			first := 0
			for range total {
				a := get(e.stack, "weighted", "/", "")
				if a.status != http.StatusOK {
					t.Fatalf("a request gets %d %s", a.status, a.body)
				}
				if strings.HasPrefix(a.served, e.host(primary)) {
					first++
				}
			}
			if got, most := float64(first)/total, max(0.10, 4.5*math.Sqrt(share*(1-share)/total)); math.Abs(got-share) > most {
				t.Errorf("the first pool has %.2f of the requests, want %.2f and %.2f more or less", got, share, most)
			}
		}},
		{"GatewayDestinationEndpointServed", func(t *testing.T) {
			e.apply(route("told", "gateway", to("primary", "", "")))
			e.served(e.stack, "told", "/", primary)
			for pod := 61; pod < 64; pod++ {
				if a, want := get(e.stack, "told", "/", e.host(pod)), e.host(pod)+
					":3000"; a.header.Get("x-conformance-test-served-endpoint") != want || a.served != want {
					t.Errorf("the picker was told of %q, and %s served, want %s", a.header.Get("x-conformance-test-served-endpoint"),
						a.served, want)
				}
			}
		}},
		{"InferencePoolAppProtocol", func(t *testing.T) {
			http2 := new(http.Protocols)
			http2.SetUnencryptedHTTP2(true)
			e.engine(t, e.host(91)+":3000", http2)
			h2c := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: pod-91, labels: {app: h2c}}\nstatus: {podIP: %s}\n---\n",
				e.host(91))
			e.apply(h2c, aPool("h2c", "app: h2c", "{number: 3000}", ", appProtocol: kubernetes.io/h2c"),
				aPool("http", "app: primary", "{number: 3000}", ", appProtocol: http"),
				route("h2c", "gateway", to("h2c", "", "")), route("http", "gateway", to("http", "", "")),
				route("default", "gateway", to("primary", "", "")))
			for name, proto := range map[string]string{"h2c": "HTTP/2.0", "http": "HTTP/1.1", "default": "HTTP/1.1"} {
				e.await(name+" is served", func() bool { return get(e.stack, name, "/", "").status == http.StatusOK })
				if a := get(e.stack, name, "/", ""); !strings.HasPrefix(a.body, proto+" ") {
					t.Errorf("the pool %s is asked by %s", name, a.body)
				}
			}
		}},
		{"EppUnAvailableFailOpen", func(t *testing.T) {
			open := aPool("open", "app: primary", "{number: 3000}",
				", endpointPickerRef: {name: open-epp, port: {number: 9002}, failureMode: FailOpen}") +
				route("open", "gateway", to("open", "", ""))
			e.apply(open, e.epp("open"))
			e.await("the picker is asked", func() bool {
				return get(e.stack, "open", "/", e.host(62)).header.Get("x-conformance-test-served-endpoint") != ""
			})
			broken, _, _ := strings.Cut(e.epp("open"), "---\n")
			e.apply(open, strings.Replace(broken, "app: epp", "app: nobody", 1))
			e.await("the picker is asked no more", func() bool {
				a := get(e.stack, "open", "/", e.host(62))
				return a.status == http.StatusOK && a.header.Get("x-conformance-test-served-endpoint") == ""
			})
			for range 20 {
				if a := get(e.stack, "open", "/", ""); a.status != http.StatusOK || !strings.HasPrefix(a.served, e.host(primary)) {
					t.Errorf("without a picker a request gets %d from %s", a.status, a.served)
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.t = t
			c.run(t)
		})
	}
	e.t = t
}

// only is a check that good accepts the servers of a hundred requests. The header selection tells
// the picker which endpoints to pick.
func (e *extension) only(t *testing.T, route, selection string, good func(served string) bool) {
	t.Helper()
	for range 100 {
		if a := get(e.stack, route, "/", selection); a.status != http.StatusOK || !good(a.served) {
			t.Fatalf("of %s: %d from %s", selection, a.status, a.served)
		}
	}
}
