package controller_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/controller"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/test/network"
)

// control is a Controller with its Server on a socket.
type control struct {
	t        *testing.T
	template *envoy.Template
	socket   string

	mu    sync.Mutex // guards the fields below
	world *objects.World
	newer chan struct{}
	plans *plan.Plans
	log   bytes.Buffer
	// answers is the number of answers to route configurations, including trials.
	answers int
}

// Write receives the log lines of the control.
func (c *control) Write(line []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.Write(line)
}

func start(t *testing.T) *control {
	t.Helper()
	text, err := os.ReadFile("../../../envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := &control{t: t, socket: filepath.Join(t.TempDir(), "control.sock"), newer: make(chan struct{})}
	if c.template, err = envoy.Read(text); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", c.socket)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(c, nil))
	answers := controller.NewAnswers()
	heard := func(from ads.Envoy, is order.Answer) {
		if is.Type == order.Routes {
			c.mu.Lock()
			c.answers++
			c.mu.Unlock()
		}
		answers.Answered(from, is)
	}
	envoys := ads.New(ads.Config{
		Identify: ads.FromNode, Answered: heard, Disconnected: answers.Disconnected, Settled: answers.Settled,
		Log: log,
	})
	driver := controller.New(controller.Config{
		Template: c.template, Envoys: envoys, Answers: answers, Log: log,
		Planned: func(p controller.Plans) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.plans = p.Plans
		},
	})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = driver.Run(ctx, c.next) })
	running.Go(func() { _ = envoys.Run(ctx, l, nil) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		if t.Failed() {
			t.Log(c.log.String())
		}
	})
	return c
}

func (c *control) next() (*objects.World, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.world, c.newer
}

// apply applies objects.
func (c *control) apply(text string) {
	w := &objects.World{Network: network.Read(c.t, text)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.world = w
	close(c.newer)
	c.newer = make(chan struct{})
}

// verdict returns the error with which the Envoys of Gateway ns/g reject a route; empty if they
// accept it.
func (c *control) verdict(route string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plans == nil {
		return ""
	}
	v := c.plans.Routes[objects.Object{Kind: objects.HTTPRouteKind, Name: objects.Name{Namespace: "ns", Name: route}}]
	return v.Envoys[objects.Name{Namespace: "ns", Name: "g"}].Message
}

// others returns the resources, except routes, that Envoys of the first Gateway reject.
func (c *control) others() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plans == nil {
		return nil
	}
	return c.plans.Gateways[0].Refused
}

// said returns the number of log lines that contain a text.
func (c *control) said(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Count(c.log.String(), text)
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(limit) {
			t.Fatalf("timeout: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

const class = "kind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n---\n" +
	"kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, addresses: [{type: IPAddress, value: ADDRESS}], listeners: [{name: http, port: 20080, protocol: HTTP}]}\n"

// route returns an HTTPRoute that redirects requests of one host, so that it needs no Service.
func route(name, path, more string) string {
	return fmt.Sprintf("---\nkind: HTTPRoute\nmetadata: {namespace: ns, name: %s}\nspec:\n  parentRefs: [{name: g}]\n  hostnames: [%s.test]\n"+
		"  rules: [{matches: [{path: {type: RegularExpression, value: '%s'}}], filters: [{type: RequestRedirect, requestRedirect: {hostname: to-%s.test}}%s]}]\n", name,
		name, path,
		name, more)
}

// client is a model of an Envoy. It rejects routes that contain certain texts, and clusters and
// listeners with certain names.
type client struct {
	refuses []string
	stop    func()

	mu      sync.Mutex // guards the fields below
	routes  map[string]string
	seen    []string // all route configurations received
	removed []string
	held    chan struct{} // delays answers to trials until closed; nil: no delay
}

func (c *control) client(refuses ...string) *client {
	c.t.Helper()
	e := &client{refuses: refuses, routes: make(map[string]string)}
	conn, err := grpc.NewClient("unix:"+c.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	done := make(chan struct{})
	e.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		_ = conn.Close()
	})
	c.t.Cleanup(e.stop)
	for _, of := range []string{order.Clusters, order.Listeners} {
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
			Node:    &corev3.Node{Id: "envoy", Cluster: "ns/g"},
			TypeUrl: of,
		}); err != nil {
			c.t.Fatal(err)
		}
	}
	go func() {
		defer close(done)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			requests := e.answer(r)
			e.mu.Lock()
			held := e.held
			e.mu.Unlock()
			if held != nil && slices.ContainsFunc(r.GetResources(), func(is *discoveryv3.Resource) bool {
				return r.GetTypeUrl() == order.Routes && is.GetName() == envoy.TrialName
			}) {
				select {
				case <-held:
				case <-ctx.Done():
					return
				}
			}
			for _, request := range requests {
				_ = stream.Send(request)
			}
		}
	}()
	return e
}

func (e *client) answer(r *discoveryv3.DeltaDiscoveryResponse) []*discoveryv3.DeltaDiscoveryRequest {
	e.mu.Lock()
	defer e.mu.Unlock()
	ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
	e.removed = append(e.removed, r.GetRemovedResources()...)
	ask := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: order.Routes, ResourceNamesUnsubscribe: r.GetRemovedResources()}
	for _, is := range r.GetResources() {
		ask.ResourceNamesSubscribe = append(ask.ResourceNamesSubscribe, is.GetName())
		body := is.GetName()
		if r.GetTypeUrl() == order.Routes {
			all := new(routev3.RouteConfiguration)
			if err := is.GetResource().UnmarshalTo(all); err != nil {
				panic(err)
			}
			body += "\n" + prototext.Format(all)
			e.seen = append(e.seen, body)
		}
		refused := false
		for _, text := range e.refuses {
			if strings.Contains(body, text) {
				refused, ack.ErrorDetail = true, &rpcv3.Status{Message: "Error: " + text}
			}
		}
		if !refused && r.GetTypeUrl() == order.Routes {
			e.routes[is.GetName()] = body
		}
	}
	if r.GetTypeUrl() == order.Listeners {
		return []*discoveryv3.DeltaDiscoveryRequest{ack, ask}
	}
	return []*discoveryv3.DeltaDiscoveryRequest{ack}
}

// tried returns the trials that the client received, except trials without routes.
func (e *client) tried() (all []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, body := range e.seen {
		if strings.HasPrefix(body, envoy.TrialName+"\n") && strings.Contains(body, "redirect") {
			all = append(all, body)
		}
	}
	return all
}

// serves returns the texts that occur in the accepted routes of the port.
func (e *client) serves(texts ...string) (all []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, text := range texts {
		if strings.Contains(e.routes["port-20080"], text) {
			all = append(all, text)
		}
	}
	return all
}

// If one Envoy rejects a route, all Envoys of the Gateway lose it, including those that connect
// later. No other route is ever left out. The rejection is logged once. A corrected route is served
// again.
func TestRejectedRouteIsLeftOutForAllEnvoys(t *testing.T) {
	c := start(t)
	var routes, paths []string
	for i := range 20 {
		routes, paths = append(routes, route(fmt.Sprint("r", i), fmt.Sprintf("/p%d/", i), "")), append(paths, fmt.Sprintf("/p%d/", i))
	}
	one, two := c.client("/bad/"), c.client()
	objects := class + strings.Join(routes, "")
	c.apply(objects)
	await(t, "both serve all", func() bool { return len(one.serves(paths...)) == 20 && len(two.serves(paths...)) == 20 })
	good := one.serves(paths...)

	c.apply(strings.Replace(objects, "/p7/", "/bad/", 1) + route("new", "/new/", ""))
	await(t, "the verdict is told", func() bool { return strings.Contains(c.verdict("r7"), `"Error: /bad/"`) })
	rest := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return p == "/p7/" })
	for _, e := range []*client{one, two} {
		await(t, "the rest is in force", func() bool {
			return slices.Equal(e.serves(append(rest, "/new/", "/p7/", "/bad/")...), append(rest, "/new/"))
		})
	}
	one.stop()
	late := c.client("/bad/")
	await(t, "one that comes later serves the rest", func() bool { return len(late.serves(rest...)) == 19 })
	if n := c.said("an Envoy rejected a route"); n != 1 {
		t.Errorf("the rejection is logged %d times", n)
	}
	late.mu.Lock()
	for _, body := range late.seen {
		if strings.Contains(body, "/bad/") {
			t.Error("the rejected route is sent again")
		}
	}
	late.mu.Unlock()
	if c.verdict("r8") != "" {
		t.Errorf("the verdict on another route is %s", c.verdict("r8"))
	}
	c.apply(objects)
	await(t, "mended it serves", func() bool {
		return len(late.serves(good...)) == 20 && len(two.serves(good...)) == 20 && c.verdict("r7") == ""
	})
	two.mu.Lock()
	defer two.mu.Unlock()
	for _, body := range two.seen {
		for i, path := range paths {
			if i != 7 && strings.HasPrefix(body, "port-20080\n") && !strings.Contains(body, path) {
				t.Errorf("%s was briefly not in force", path)
			}
		}
	}
}

// Changes of routes during a search do not change its trials. The next search uses the new routes.
func TestSearchUsesItsInitialRoutes(t *testing.T) {
	c := start(t)
	routes := make([]string, 8)
	for i := range routes {
		routes[i] = route(fmt.Sprint("r", i), fmt.Sprintf("/p%d/", i), "")
	}
	apply := func() { c.apply(class + strings.Join(routes, "")) }
	e := c.client("/bad/")
	e.held = make(chan struct{})
	routes[2] = route("r2", "/bad/", "")
	apply()
	await(t, "it looks for it", func() bool { return len(e.tried()) == 1 })
	routes[1] = route("r1", "/q1/", "")
	apply()
	await(t, "the change is planned", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return strings.Contains(c.plans.Text(), "/q1/")
	})
	close(e.held)
	await(t, "the rest is in force", func() bool { return len(e.serves("/p0/", "/q1/", "/p3/", "/p7/")) == 4 && c.verdict("r2") != "" })
	for _, body := range e.tried() {
		if strings.Contains(body, "/q1/") {
			t.Errorf("the trial is\n%s", body)
		}
	}
	routes[3], routes[4], routes[5] = route("r3", "/p3/more/", ""), route("r4", "/bad/more/", ""), route("r5", "/p5/more/", "")
	apply()
	await(t, "the other one is found", func() bool {
		return len(e.serves("/q1/", "/p3/more/", "/p5/more/", "/p7/")) == 4 && c.verdict("r4") != ""
	})
	if c.verdict("r3") != "" || c.verdict("r5") != "" {
		t.Errorf("the verdicts on the others are %q and %q", c.verdict("r3"), c.verdict("r5"))
	}
}

// When a search ends, its trial is removed from Envoys.
func TestTrialEndsWithItsSearch(t *testing.T) {
	c := start(t)
	other, e := c.client(), c.client("/bad/")
	e.held = make(chan struct{})
	c.apply(class + route("r0", "/p0/", "") + route("r1", "/p1/", "") + route("r2", "/p2/", "") + route("r3", "/bad/", ""))
	await(t, "both try", func() bool { return len(e.tried()) > 0 && len(other.tried()) > 0 })
	e.stop()
	await(t, "it is taken away", func() bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return slices.Contains(other.removed, envoy.TrialName)
	})
}

// If Envoys reject a resource and no route causes that, the Gateway has a fault until they accept
// it.
func TestOtherRejectionsBelongToTheGateway(t *testing.T) {
	c := start(t)
	const service = "---\nkind: Service\nmetadata: {namespace: ns, name: a}\nspec: {ports: [{port: 80}]}\n---\nkind: HTTPRoute\nmetadata: {namespace: ns, name: r}\n" +
		"spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 80}]}]}\n"
	e := c.client("service/ns/a/80")
	c.apply(class + service + route("r0", "/p0/", ""))
	await(t, "the Gateway says it", func() bool {
		return slices.Equal(c.others(), []string{"cluster service/ns/a/80: Error: service/ns/a/80"})
	})
	await(t, "the route that names it is left out, and the other is in force", func() bool {
		return c.verdict("r") != "" && len(e.serves("/p0/")) == 1
	})
	if n := c.said("an Envoy rejected its configuration"); n != 1 {
		t.Errorf("the rejection is logged %d times", n)
	}
	e.stop()
	await(t, "who refuses it has left", func() bool { return len(c.others()) == 0 })
}

var web = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// get returns the status of a response, and its Location.
func get(t *testing.T, address, host, path string) string {
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+":20080"+path, nil)
	if err != nil {
		return err.Error()
	}
	q.Host = host
	response, err := web.Do(q)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return fmt.Sprint(response.StatusCode, " ", response.Header.Get("location"))
}

// A real Envoy rejects one of 1,000 routes, then another one. Each time it serves the remaining 999
// routes, also after a restart. Routes that it has accepted are served all the time.
func TestEnvoyRejectsOneOfAThousandRoutes(t *testing.T) {
	binary, err := find.Envoy(t.Context(), "../../../.cache", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	c := start(t)
	own := fmt.Sprintf("127.%d.%d.2", 200+os.Getpid()%50, 21)
	text, err := c.template.Bootstrap(envoy.Place{
		Gateway: objects.Name{Namespace: "ns", Name: "g"}, Node: "envoy-0", Admin: netip.MustParseAddrPort(own + ":9901"),
		Extproc: c.socket + ".extproc", Control: c.socket,
	})
	if err != nil {
		t.Fatal(err)
	}
	// This Envoy accepts only smaller regular expressions than control expects.
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	layers := config["layeredRuntime"].(map[string]any)
	layers["layers"] = append(layers["layers"].([]any),
		map[string]any{"name": "small", "staticLayer": map[string]any{"re2.max_program_size.error_level": 300}})
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "envoy.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	starter := process.NewStarter()
	run := func() *process.Process {
		is, err := starter.Start("envoy", dir, exec.Command(binary, "--config-path", filepath.Join(dir, "envoy.json"),
			"--disable-hot-restart", "--log-level", "error", "--drain-time-s", "1"))
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	is := run()
	t.Cleanup(func() {
		web.CloseIdleConnections()
		is.Stop(5 * time.Second)
		close(starter)
		if t.Failed() {
			t.Log(is.LastWords())
		}
	})

	all := make([]string, 1000)
	for i := range all {
		all[i] = route(fmt.Sprint("r", i), "/.*", "")
	}
	apply := func() { c.apply(strings.Replace(class, "ADDRESS", own, 1) + strings.Join(all, "")) }
	serve := func(what string, others map[int]string) {
		t.Helper()
		await(t, what, func() bool { return get(t, own, "r0.test", "/a/v1/b") == "302 http://to-r0.test:20080/a/v1/b" })
		for i := range all {
			want, other := others[i]
			if !other {
				want = fmt.Sprintf("302 http://to-r%d.test:20080/a/v1/b", i)
			}
			if got := get(t, own, fmt.Sprintf("r%d.test", i), "/a/v1/b"); got != want {
				t.Fatalf("%s: route %d answers %s, want %s", what, i, got, want)
			}
		}
	}
	verdict := func(name string) {
		t.Helper()
		await(t, "the verdict is told", func() bool { return strings.Contains(c.verdict(name), "RE2 program size of") })
		// A binary search of 1,000 routes takes ten trials. There are a few more answers before and
		// after it.
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.answers > 20 {
			t.Errorf("Envoy answered %d times before %s was found", c.answers, name)
		}
		t.Logf("after %d answers %s is blamed", c.answers, name)
		c.answers = 0
	}
	all[500] = route("r500", "/[a-z0-9-]{1,120}/v1/.*", "")
	apply()
	verdict("r500")
	serve("999 answer", map[int]string{500: "404 "}) // Envoy also rejects the match of route 500

	var lost atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if got := get(t, own, "r1.test", "/"); got != "302 http://to-r1.test:20080/" && ctx.Err() == nil {
				lost.Add(1)
				t.Errorf("during the search a route answers %s", got)
			}
		}
	}()
	all[7] = route("r7", "/.*", ", {type: CORS, cors: {allowOrigins: ['https://*."+strings.Repeat("long-", 80)+".test']}}")
	apply()
	verdict("r7")
	await(t, "it answers 500", func() bool { return get(t, own, "r7.test", "/") == "500 " })
	serve("998 answer", map[int]string{500: "404 ", 7: "500 "})
	stop()
	<-done

	is.Stop(5 * time.Second)
	is = run()
	serve("998 answer after Envoy has started anew", map[int]string{500: "404 ", 7: "500 "})
	all[500], all[7] = route("r500", "/[a-z]/v1/.*", ""), route("r7", "/.*", "")
	apply()
	await(t, "mended it serves", func() bool {
		return get(t, own, "r500.test", "/a/v1/b") == "302 http://to-r500.test:20080/a/v1/b" &&
			get(t, own, "r7.test", "/") == "302 http://to-r7.test:20080/"
	})
	serve("all answer", nil)
	if c.verdict("r500") != "" || c.verdict("r7") != "" || c.said("an Envoy rejected a route") != 2 {
		t.Errorf("the last verdicts are %q and %q, and %d rejections are logged", c.verdict("r500"), c.verdict("r7"),
			c.said("an Envoy rejected a route"))
	}
}
