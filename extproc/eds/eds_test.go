package eds_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	rpcv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/eds"
	"github.com/headgate/headgate/internal/objects"
)

// world is a Server under test, on synctest's fake clock, and its clients.
type world struct {
	*eds.Server
	t    *testing.T
	door *bufconn.Listener

	mu  sync.Mutex // guards the fields below
	log bytes.Buffer
}

func (w *world) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(line)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func inMemory(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, door: bufconn.Listen(1 << 20)}
		w.Server = eds.New(slog.New(slog.NewTextHandler(w, nil)))
		server := grpc.NewServer()
		edsv3.RegisterEndpointDiscoveryServiceServer(server, w.Server)
		ctx, cancel := context.WithCancel(t.Context())
		var beside sync.WaitGroup
		beside.Go(func() { _ = server.Serve(w.door) })
		beside.Go(func() { _ = w.Run(ctx) })
		test(w)
		cancel()
		w.Close()
		server.GracefulStop() // a stream that is left open would deadlock the synctest bubble
		beside.Wait()
	})
}

func (w *world) after(d time.Duration) {
	time.Sleep(d) // on synctest's fake clock
	synctest.Wait()
}

// set calls Set and returns how long it took.
func (w *world) set(lists map[string][]string) time.Duration {
	began := time.Now()
	w.Set(w.t.Context(), eds.Read(lists))
	took := time.Since(began)
	synctest.Wait()
	return took
}

// envoy is a client that behaves like Envoy.
type envoy struct {
	w      *world
	stream edsv3.EndpointDiscoveryService_DeltaEndpointsClient
	conn   *grpc.ClientConn
	delay  time.Duration // time before the client acknowledges a response; negative: it never does
	refuse string        // error with which the client rejects a response; empty: it accepts

	mu       sync.Mutex // guards the fields below
	knows    map[string][]string
	versions map[string]string
	received int
	nonce    string // nonce of the last response
	ended    bool
}

// follow opens a stream that subscribes to resources. versions are the versions of the resources
// that the client already has.
func (w *world) follow(delay time.Duration, versions map[string]string, names ...string) *envoy {
	w.t.Helper()
	return w.followAs(nil, delay, versions, names...)
}

// followAs does the same as follow, with a node in the first request.
func (w *world) followAs(node *corev3.Node, delay time.Duration, versions map[string]string, names ...string) *envoy {
	w.t.Helper()
	conn, err := grpc.NewClient("passthrough:///extproc", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.door.DialContext(ctx) }))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	e := &envoy{w: w, conn: conn, delay: delay, knows: map[string][]string{}, versions: map[string]string{}}
	if e.stream, err = edsv3.NewEndpointDiscoveryServiceClient(conn).DeltaEndpoints(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	if err := e.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: node, ResourceNamesSubscribe: names,
		InitialResourceVersions: versions,
	}); err != nil {
		w.t.Fatal(err)
	}
	go e.listen()
	synctest.Wait()
	return e
}

func (e *envoy) listen() {
	for {
		r, err := e.stream.Recv()
		if err != nil {
			e.mu.Lock()
			e.ended = true
			e.mu.Unlock()
			return
		}
		e.receive(r)
		if e.delay < 0 {
			continue
		}
		time.Sleep(e.delay) // on synctest's fake clock
		ack := &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: r.GetNonce()}
		if e.refuse != "" {
			ack.ErrorDetail = &rpcv3.Status{Code: 13, Message: e.refuse}
		}
		_ = e.stream.Send(ack) // if Send fails, Recv returns the same error
	}
}

// last returns the nonce of the last response.
func (e *envoy) last() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.nonce
}

func (e *envoy) receive(r *discoveryv3.DeltaDiscoveryResponse) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.received++
	e.nonce = r.GetNonce()
	for _, resource := range r.GetResources() {
		var a endpointv3.ClusterLoadAssignment
		if err := resource.GetResource().UnmarshalTo(&a); err != nil || a.ValidateAll() != nil || a.GetClusterName() != resource.GetName() {
			e.w.t.Errorf("%s: %v, for the cluster %q", resource.GetName(), err, a.GetClusterName())
		}
		endpoints := []string{}
		for _, locality := range a.GetEndpoints() {
			for _, host := range locality.GetLbEndpoints() {
				s := host.GetEndpoint().GetAddress().GetSocketAddress()
				address := net.JoinHostPort(s.GetAddress(), strconv.Itoa(int(s.GetPortValue())))
				if host.GetHealthStatus() == corev3.HealthStatus_UNHEALTHY {
					address += "!"
				}
				endpoints = append(endpoints, address)
			}
		}
		e.knows[resource.GetName()], e.versions[resource.GetName()] = endpoints, resource.GetVersion()
	}
	for _, name := range r.GetRemovedResources() {
		delete(e.knows, name)
	}
}

// check compares the client's endpoints, and the number of responses that it got, with the expected
// ones.
func (e *envoy) check(when string, told int, want map[string][]string) {
	e.w.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.knows) != len(want) || e.received != told {
		e.w.t.Errorf("%s: the client has %v after %d responses, want %v after %d", when, e.knows, e.received, want, told)
		return
	}
	for name, endpoints := range want {
		if got, ok := e.knows[name]; !ok || !slices.Equal(got, endpoints) {
			e.w.t.Errorf("%s: the client has %v, want %v", when, e.knows, want)
			return
		}
	}
}

type lists = map[string][]string

func TestEnvoyGetsOnlyItsSubscriptions(t *testing.T) {
	inMemory(t, func(w *world) {
		w.set(lists{"a": {"10.0.0.1:80", "[fd00::1]:81"}, "b": {}})
		all, a, none := w.follow(0, nil, "a", "b"), w.follow(0, nil, "a"), w.follow(0, nil, "c")
		all.check("at first", 1, lists{"a": {"10.0.0.1:80", "[fd00::1]:81"}, "b": {}})
		a.check("at first", 1, lists{"a": {"10.0.0.1:80", "[fd00::1]:81"}})
		none.check("at first", 0, nil)

		w.set(lists{"a": {"10.0.0.1:80", "[fd00::1]:81"}, "b": {"10.0.0.2:80"}, "c": {"10.0.0.3:80"}})
		all.check("with another in b", 2, lists{"a": {"10.0.0.1:80", "[fd00::1]:81"}, "b": {"10.0.0.2:80"}})
		a.check("with another in b", 1, lists{"a": {"10.0.0.1:80", "[fd00::1]:81"}})
		none.check("with c", 1, lists{"c": {"10.0.0.3:80"}})

		w.set(lists{"a": {"10.0.0.1:80"}})
		w.after(9 * time.Second)
		all.check("within ten seconds", 2, lists{"a": {"10.0.0.1:80", "[fd00::1]:81"}, "b": {"10.0.0.2:80"}})
		w.after(2 * time.Second)
		a.check("after ten seconds", 2, lists{"a": {"10.0.0.1:80"}})
		all.check("after ten seconds", 3, lists{"a": {"10.0.0.1:80"}})
		if log := w.logged(); log != "" {
			t.Errorf("it logged %s", log)
		}
	})
}

// Envoys receive changes of the Avoid mark like all other changes, but Set does not wait until they
// are acknowledged.
func TestEnvoyGetsEndpointsToAvoid(t *testing.T) {
	inMemory(t, func(w *world) {
		w.set(lists{"a": {"10.0.0.1:80", "10.0.0.2:80!"}})
		e := w.follow(time.Second, nil, "a")
		e.check("at first", 1, lists{"a": {"10.0.0.1:80", "10.0.0.2:80!"}})
		w.after(time.Second)
		if took := w.set(lists{"a": {"10.0.0.1:80!", "10.0.0.2:80"}}); took != 0 {
			t.Errorf("Set takes %v", took)
		}
		e.check("when others are", 2, lists{"a": {"10.0.0.1:80!", "10.0.0.2:80"}})
		w.after(time.Second)
	})
}

// Set returns when every Envoy that subscribes to a new endpoint's resource has acknowledged it.
func TestSetWaitsForSubscribers(t *testing.T) {
	const slow = 50 * time.Millisecond
	inMemory(t, func(w *world) {
		if took := w.set(lists{"a": {"10.0.0.1:80"}, "b": {}}); took != 0 {
			t.Errorf("without subscribers Set takes %v", took)
		}
		w.follow(0, nil, "a")
		late := w.follow(slow, nil, "a")
		w.follow(-1, nil, "b") // this client never acknowledges, and does not subscribe to a
		w.after(time.Second)
		if took := w.set(lists{"a": {"10.0.0.1:80", "10.0.0.2:80"}, "b": {}}); took != slow {
			t.Errorf("Set with a new endpoint takes %v, want %v, the time of the slowest client", took, slow)
		}
		late.check("when that has returned", 2, lists{"a": {"10.0.0.1:80", "10.0.0.2:80"}})
		if took := w.set(lists{"a": {"10.0.0.2:80"}, "b": {}}); took != 0 {
			t.Errorf("Set without an endpoint takes %v", took)
		}
		// A change that is made while the previous response is unacknowledged is sent after its
		// acknowledgement.
		go w.set(lists{"a": {"10.0.0.2:80", "10.0.0.3:80"}, "b": {}})
		w.after(slow / 2)
		if took := w.set(lists{"a": {"10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"}, "b": {}}); took != slow/2+slow {
			t.Errorf("the second of two calls takes %v, want %v", took, slow/2+slow)
		}
		// Set does not wait for a stream that has unsubscribed.
		if err := late.stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
		w.after(slow)
		if took := w.set(lists{"a": {"10.0.0.5:80"}, "b": {}}); took != 0 {
			t.Errorf("Set waits %v for a client that has unsubscribed", took)
		}
		if log := w.logged(); log != "" {
			t.Errorf("it logged %s", log)
		}
	})
}

func TestSetWaitsBriefly(t *testing.T) {
	const patience = 200 * time.Millisecond
	inMemory(t, func(w *world) {
		w.set(lists{"a": {}})
		deaf := w.follow(-1, nil, "a")
		if took := w.set(lists{"a": {"10.0.0.1:80"}}); took != patience ||
			!strings.Contains(w.logged(), "did not acknowledge new endpoints in time") {
			t.Errorf("Set waits %v for a client that never acknowledges, and the log is %s", took, w.logged())
		}
		if took := w.set(lists{"a": {"10.0.0.1:80", "10.0.0.9:80"}}); took != 0 {
			t.Errorf("Set waits %v for it again", took)
		}
		_ = deaf.conn.Close()
		slow := w.follow(patience+patience/2, nil, "a")
		w.after(time.Second)
		for range 2 { // a client that never answers is late each time, and still gets the lists
			if took := w.set(lists{"a": {"10.0.0.1:80", "10.0.0.8:80"}}); took != patience {
				t.Errorf("Set waits %v for a slow client", took)
			}
			w.after(time.Second)
			w.set(lists{"a": {"10.0.0.1:80"}})
			w.after(12 * time.Second)
		}
		_ = slow.conn.Close()
		// Set stops waiting for a client that disconnects.
		leaving := w.follow(-1, nil, "a")
		go func() {
			time.Sleep(patience / 4) // on synctest's fake clock
			_ = leaving.conn.Close()
		}()
		if took := w.set(lists{"a": {"10.0.0.1:80", "10.0.0.2:80"}}); took != patience/4 {
			t.Errorf("Set waits %v for a client that disconnects", took)
		}
		w.follow(-1, nil, "a")
		ctx, cancel := context.WithTimeout(w.t.Context(), patience/2)
		defer cancel()
		began := time.Now()
		w.Set(ctx, eds.Read(lists{"a": {"10.0.0.3:80"}}))
		if took := time.Since(began); took != patience/2 {
			t.Errorf("Set waits %v after its context has ended", took)
		}
	})
}

func TestReconnectedEnvoyGetsOnlyChanges(t *testing.T) {
	inMemory(t, func(w *world) {
		w.set(lists{"a": {"10.0.0.1:80"}})
		first := w.follow(0, nil, "a")
		first.check("at first", 1, lists{"a": {"10.0.0.1:80"}})
		_ = first.conn.Close()
		second := w.follow(0, first.versions, "a")
		second.check("when it is back", 0, nil)
		if took := w.set(lists{"a": {"10.0.0.1:80", "10.0.0.2:80"}}); took != 0 {
			t.Errorf("Set takes %v", took)
		}
		second.check("with another endpoint", 1, lists{"a": {"10.0.0.1:80", "10.0.0.2:80"}})
	})
}

// An Envoy that rejects a list keeps the previous list. The error is logged, and Set does not wait.
func TestRefusedListIsLogged(t *testing.T) {
	inMemory(t, func(w *world) {
		w.set(lists{"a": {}})
		e := w.follow(0, nil, "a")
		e.refuse = "malformed IP address"
		if took := w.set(lists{"a": {"10.0.0.1:80"}}); took != 0 || !strings.Contains(w.logged(), "malformed IP address") {
			t.Errorf("after %v the log is %s", took, w.logged())
		}
	})
}

// An acknowledgement of one list does not acknowledge the next list; Set still waits for that.
func TestAcknowledgementIsForOneList(t *testing.T) {
	const patience = 200 * time.Millisecond
	inMemory(t, func(w *world) {
		w.set(lists{"a": {}, "b": {}})
		e := w.follow(-1, nil, "a")
		first := e.last()
		done := make(chan time.Duration, 1)
		go func() { done <- w.set(lists{"a": {"10.0.0.1:80"}, "b": {}}) }()
		w.after(patience / 8)
		for i, r := range []*discoveryv3.DeltaDiscoveryRequest{
			{ResourceNamesSubscribe: []string{"b"}}, // subscribed before the acknowledgement; the client gets all changes
			{ResponseNonce: first},
		} {
			if err := e.stream.Send(r); err != nil {
				t.Fatal(err)
			}
			w.after(patience / 8)
			if len(done) > 0 {
				t.Errorf("after request %d Set no longer waits for a client that has not acknowledged the second list", i)
			}
		}
		if e.last() == first {
			t.Fatal("there is no second response")
		}
		if err := e.stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: e.last()}); err != nil {
			t.Fatal(err)
		}
		if took := <-done; took != patience*3/8 {
			t.Errorf("Set waits %v for a client that has acknowledged the second list", took)
		}
	})
}

// An endpoint with an invalid address is omitted and logged; the endpoints after it are listed.
func TestInvalidAddressIsLeftOut(t *testing.T) {
	inMemory(t, func(w *world) {
		w.set(lists{"a": {"10.0.0.1:80", "10.0.0.2", "10.0.0.3:80"}})
		w.follow(0, nil, "a").check("at first", 1, lists{"a": {"10.0.0.1:80", "10.0.0.3:80"}})
		if log := w.logged(); !strings.Contains(log, "10.0.0.2") || strings.Contains(log, "10.0.0.3") {
			t.Errorf("it logged %s", log)
		}
	})
}

func TestCloseEndsTheStreams(t *testing.T) {
	inMemory(t, func(w *world) {
		w.set(lists{"a": {}})
		e := w.follow(0, nil, "a")
		w.Close()
		synctest.Wait()
		e.mu.Lock()
		defer e.mu.Unlock()
		if !e.ended {
			t.Error("a stream did not end")
		}
	})
}

// In a pool that fails open, Envoy may choose endpoints itself and should avoid those that are not
// ready. In the lists of other pools no endpoint is marked.
func TestListsOfPools(t *testing.T) {
	var s objects.Set
	for name, mode := range map[string]string{"llama": pool.FailOpen, "phi": pool.FailClose, "empty": ""} {
		p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Spec.Selector.MatchLabels = map[string]string{"app": name}
		p.Spec.TargetPorts = []pool.Port{{Number: 8000}, {Number: 8001}}
		if mode != "" {
			p.Spec.EndpointPickerRef = &pool.EndpointPickerRef{Name: "epp", FailureMode: mode}
		}
		s.Pools = append(s.Pools, p)
	}
	for i, pod := range []objects.Pod{
		{Ready: true, Labels: map[string]string{"app": "llama"}},
		{Ready: false, Labels: map[string]string{"app": "llama"}},
		{Ready: true, NodeSilent: true, Labels: map[string]string{"app": "llama"}},
		{Ready: true, Terminating: true, Labels: map[string]string{"app": "llama"}}, // this pod is migrating
		{Ready: true, Labels: map[string]string{"app": "phi"}},
		{Ready: false, Labels: map[string]string{"app": "phi"}},
	} {
		pod.Name = objects.Name{Namespace: "ns", Name: "pod" + strconv.Itoa(i)}
		pod.IP = netip.MustParseAddr("10.0.0." + strconv.Itoa(i+1))
		s.Pods = append(s.Pods, pod)
	}
	calls := int32(9000)
	settings := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one"}}
	settings.Spec.PoolRef.Name, settings.Spec.Ports = "one", &v1alpha1.Ports{GRPC: &calls}
	one := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one"}}
	one.Spec.Selector.MatchLabels, one.Spec.TargetPorts = map[string]string{"app": "one"}, []pool.Port{{Number: 8000}}
	s.Pools, s.Settings = append(s.Pools, one), append(s.Settings, settings)
	s.Pods = append(s.Pods, objects.Pod{
		Name: objects.Name{Namespace: "ns", Name: "one"}, IP: netip.MustParseAddr("10.0.1.1"), Ready: true,
		Labels: map[string]string{"app": "one"},
	})
	w := objects.Build(s)
	// Every list contains the relay, except those of pools that fail open: Envoy could choose the
	// relay.
	for name, list := range eds.Endpoints(w, "/run/inner.sock") {
		alone := eds.Endpoints(w, "")[name]
		inner := len(list) == len(alone)+1 && list[len(alone)] == eds.Endpoint{Address: "/run/inner.sock", Avoid: true} &&
			slices.Equal(list[:len(alone)], alone)
		if open := strings.HasSuffix(name, "/llama"); inner == open || open && !slices.Equal(list, alone) {
			t.Errorf("with the relay %s lists %v", name, list)
		}
	}
	got := eds.Endpoints(w, "")
	for name, want := range (lists{
		"pool/ns/llama": {
			"10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000!", "10.0.0.2:8001!", "10.0.0.3:8000!", "10.0.0.3:8001!",
			"10.0.0.4:8000!", "10.0.0.4:8001!",
		},
		"pool/ns/phi":   {"10.0.0.5:8000", "10.0.0.5:8001", "10.0.0.6:8000", "10.0.0.6:8001"},
		"pool/ns/empty": {},
		"endpoints": {
			"10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.2:8001", "10.0.0.3:8000", "10.0.0.3:8001",
			"10.0.0.4:8000", "10.0.0.4:8001", "10.0.0.5:8000", "10.0.0.5:8001", "10.0.0.6:8000", "10.0.0.6:8001", "10.0.1.1:8000",
		},
		"pool/ns/one":    {"10.0.1.1:8000"},
		"calls/ns/one":   {"10.0.1.1:9000"},
		"calls/ns/phi":   {"10.0.0.5:8000", "10.0.0.5:8001", "10.0.0.6:8000", "10.0.0.6:8001"},
		"calls/ns/empty": {},
		"calls/ns/llama": {
			"10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000!", "10.0.0.2:8001!", "10.0.0.3:8000!", "10.0.0.3:8001!",
			"10.0.0.4:8000!", "10.0.0.4:8001!",
		},
		"calls": {
			"10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.2:8001", "10.0.0.3:8000", "10.0.0.3:8001",
			"10.0.0.4:8000", "10.0.0.4:8001", "10.0.0.5:8000", "10.0.0.5:8001", "10.0.0.6:8000", "10.0.0.6:8001", "10.0.1.1:9000",
		},
	}) {
		if list, ok := got[name]; !ok || !slices.Equal(eds.Written(list), want) {
			t.Errorf("%s lists %v, want %v", name, list, want)
		}
	}
	if len(got) != 10 {
		t.Errorf("there are %d lists", len(got))
	}
}
