package placementclient_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/placementclient"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/query"
)

const (
	a = "10.0.0.1:8000"
	b = "10.0.0.2:8000"
)

var thePool = objects.Name{Namespace: "ns", Name: "pool"}

func key(id string) objects.ModelKey { return objects.ModelKey{Pool: thePool, ID: id} }

// aFleet returns a fleet with one pool of two endpoints that have no lists of models.
func aFleet(published func(*endpointstate.View)) *fleet.Fleet {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}}
	p.Spec.Selector.MatchLabels = map[string]string{"app": "llama"}
	p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
	s := objects.Set{Pools: []pool.InferencePool{p}}
	for _, ip := range []string{"10.0.0.1", "10.0.0.2"} {
		s.Pods = append(s.Pods, objects.Pod{
			Name: objects.Name{Namespace: "ns", Name: "pod-" + ip}, IP: netip.MustParseAddr(ip), Ready: true,
			Labels: map[string]string{"app": "llama"},
		})
	}
	f := fleet.New(fleet.Config{Published: published, Placed: true})
	f.SetWorld(objects.Build(s))
	for _, address := range []string{a, b} {
		f.SetModels(address, engine.Models{Unlisted: true})
		f.Scrape(address).Succeeded(engine.Load{})
	}
	f.SetWorld(f.View().World) // publishes a view
	return f
}

// rig is one extproc, and the fake control that it connects to.
type rig struct {
	*testing.T
	fleet   *fleet.Fleet
	flow    *flow.Flow
	control *fakeControl
	socket  string
	queries query.Handlers
	lost    time.Duration
	meter   *metrics.Meter
	book    *limits.Book // nil without limits
}

func newRig(t *testing.T) *rig { return (&rig{T: t}).start() }

// newRigWith returns a rig whose extproc answers these queries.
func newRigWith(t *testing.T, queries query.Handlers) *rig {
	return (&rig{T: t, queries: queries}).start()
}

// start starts the extproc and control.
func (r *rig) start() *rig {
	r.socket = filepath.Join(r.TempDir(), "control.sock")
	news := placementclient.NewNews()
	r.flow = flow.New(flow.Config{
		View: func() *endpointstate.View { return r.fleet.View() }, MaxQueued: 2000, MaxBytes: 1 << 30, Changed: news.Changed,
	})
	r.fleet = aFleet(r.flow.Published)
	r.control = r.serve()
	r.Cleanup(func() { r.control.stop() })
	r.connections("unix:"+r.socket, news)
	return r
}

// connections connects the rig to control until the test ends or leave is called.
func (r *rig) connections(target string, news *placementclient.News) (leave func()) {
	r.meter = metrics.New(r.fleet)
	client := placementclient.New(placementclient.Config{
		Target: target, Dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, News: news,
		Fleet: r.fleet, Flow: r.flow, Limits: r.book, Meter: r.meter, Log: slog.New(slog.DiscardHandler), Lost: r.lost,
		Name: "host/1", Version: "v1", Queries: r.queries,
		DataPlane: func() *placement.DataPlane { return &placement.DataPlane{Picker: true, Pool: "ns/p"} },
	})
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = client.Run(ctx)
	}()
	leave = func() {
		cancel()
		<-done
	}
	r.Cleanup(leave)
	return leave
}

// fakeControl is a fake of control that sends the updates of a test.
type fakeControl struct {
	placement.UnimplementedPlacementServer
	*rig
	server  *grpc.Server
	served  chan struct{}
	streams chan *stream
}

func (r *rig) serve() *fakeControl {
	r.Helper()
	l, err := (&net.ListenConfig{}).Listen(r.Context(), "unix", r.socket)
	if err != nil {
		r.Fatal(err)
	}
	c := &fakeControl{rig: r, server: grpc.NewServer(), served: make(chan struct{}), streams: make(chan *stream, 10)}
	placement.RegisterPlacementServer(c.server, c)
	go func() {
		defer close(c.served)
		_ = c.server.Serve(l)
	}()
	return c
}

func (c *fakeControl) stop() {
	c.server.Stop()
	<-c.served
}

// stream is the fake control's end of one stream from an extproc, and the sum of the reports on it.
type stream struct {
	*rig
	wire    placement.Placement_ConnectServer
	version uint64
	end     chan struct{}

	mu       sync.Mutex // guards the fields below
	news     chan struct{}
	process  string
	applied  uint64
	reports  int
	wanted   map[string]*placement.Wanted
	inFlight map[string]uint32 // requests in flight by model and endpoint
	used     map[string]uint32
	waited   map[string]uint64 // waiting times in ms, by model
	sharing  []uint32          // the number of sharing processes in each report
	missing  []string
	leaving  map[string]*placement.Leaving
	backlogs map[string]uint32 // numbers of requests by endpoint
	question uint64
	// responses are the reported stored responses with their endpoints.
	responses []string
	program   *placement.Program
	plane     *placement.DataPlane
	states    map[string]placement.EndpointState_State
	answers   map[uint64]string // result, space and error, by the number of the query
}

func (c *fakeControl) Connect(wire placement.Placement_ConnectServer) error {
	s := &stream{
		rig: c.rig, wire: wire, end: make(chan struct{}), news: make(chan struct{}),
		wanted: map[string]*placement.Wanted{}, inFlight: map[string]uint32{}, used: map[string]uint32{}, waited: map[string]uint64{},
		leaving: map[string]*placement.Leaving{}, backlogs: map[string]uint32{},
		answers: map[uint64]string{}, states: map[string]placement.EndpointState_State{},
	}
	c.streams <- s
	go func() {
		for {
			r, err := wire.Recv()
			if err != nil {
				return
			}
			s.read(r)
		}
	}()
	select {
	case <-s.end:
	case <-wire.Context().Done():
	}
	return nil
}

func (s *stream) read(r *placement.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports++
	s.process, s.applied, s.sharing = r.GetProcess(), r.GetApplied(), append(s.sharing, r.GetSharing())
	s.question = r.GetQuestion()
	for _, w := range r.GetWanted() {
		if s.wanted[w.GetKey().GetModel()] = w; w.GetRequests() == 0 {
			delete(s.wanted, w.GetKey().GetModel())
		}
	}
	for _, i := range r.GetInFlight() {
		s.inFlight[i.GetCopy().GetKey().GetModel()+"@"+i.GetCopy().GetEndpoint()] = i.GetRequests()
	}
	for _, u := range r.GetUsage() {
		s.used[u.GetKey().GetModel()] += u.GetRequests()
		s.waited[u.GetKey().GetModel()] += u.GetWaitedMs()
	}
	for _, m := range r.GetMissing() {
		s.missing = append(s.missing, m.GetKey().GetModel()+"@"+m.GetEndpoint())
	}
	for _, l := range r.GetLeaving() {
		s.leaving[l.GetEndpoint()] = l
	}
	for _, b := range r.GetBacklogs() {
		s.backlogs[b.GetEndpoint()] = b.GetRequests()
	}
	for _, e := range r.GetStates() {
		if s.states[e.GetEndpoint()] = e.GetState(); e.GetState() == placement.EndpointState_UNKNOWN {
			delete(s.states, e.GetEndpoint())
		}
	}
	if r.DataPlane != nil {
		s.plane = r.GetDataPlane()
	}
	if r.Program != nil {
		s.program = r.GetProgram()
	}
	for _, a := range r.GetAnswers() {
		s.answers[a.GetQuery()] += string(a.GetResult()) + " " + a.GetError()
	}
	for _, m := range r.GetResponses() {
		for _, id := range m.GetIds() {
			s.responses = append(s.responses, id+"@"+m.GetEndpoint())
		}
	}
	close(s.news)
	s.news = make(chan struct{})
}

// until blocks until the reports meet a condition: holds returns true.
func (s *stream) until(what string, holds func() bool) {
	s.Helper()
	limit := time.After(10 * time.Second)
	for {
		s.mu.Lock()
		ok, news := holds(), s.news
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-news:
		case <-limit:
			s.Fatalf("never %s: applied %d, wanted %v, in flight %v, missing %v", what, s.applied, s.wanted, s.inFlight, s.missing)
		}
	}
}

// say sends an Update and returns its version.
func (s *stream) say(u *placement.Update) uint64 {
	s.Helper()
	s.version++
	u.Version = s.version
	if err := s.wire.Send(u); err != nil {
		s.Fatal(err)
	}
	return s.version
}

// inForce waits until extproc has acknowledged the last Update.
func (s *stream) inForce() {
	s.Helper()
	s.until("it is in force", func() bool { return s.applied == s.version })
}

// next returns the next stream that is opened to the fake control.
func (r *rig) next() *stream {
	r.Helper()
	select {
	case s := <-r.control.streams:
		return s
	case <-time.After(10 * time.Second):
		r.Fatal("extproc does not connect")
		return nil
	}
}

// complete returns an Update with control's complete state: both endpoints, and these copies.
func complete(copies ...*placement.Copy) *placement.Update {
	return &placement.Update{Complete: true, Endpoints: &placement.Endpoints{Addresses: []string{a, b}}, Copies: copies}
}

func wireKey(id string) *placement.ModelKey {
	return &placement.ModelKey{Pool: thePool.String(), Model: id}
}

func is(id, endpoint string, state placement.Copy_State) *placement.Copy {
	return &placement.Copy{Copy: &placement.CopyKey{Key: wireKey(id), Endpoint: endpoint}, State: state}
}

// await waits for a condition that cannot be seen in reports.
func (r *rig) await(what string, holds func() bool) {
	r.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(10 * time.Second); !holds(); {
		select {
		case <-tick.C:
		case <-limit:
			r.Fatalf("never %s", what)
		}
	}
}

// has is true if the fleet has a copy for a request for this model.
func (r *rig) has(id string) bool {
	has, _ := r.fleet.View().Snapshot.Pools[thePool.String()].Has(id)
	return has
}

// begin sends a request for a model. It returns nil if there is no copy.
func (r *rig) begin(id string, random uint64) (*fleet.InFlight, string) {
	picks, err := pick.Pick(pick.Policy{Rule: pick.Random}, r.fleet.View().Snapshot,
		pick.Request{Pool: thePool.String(), Model: id, Random: random}, make([]pick.Decision, 1))
	if err != nil {
		return nil, ""
	}
	return r.fleet.Begin(picks[0]), picks[0].Endpoint.Address
}

// wait queues a request for a model and returns its place in the queue.
func (r *rig) wait(id string) *flow.Ticket {
	r.Helper()
	ticket, err := r.flow.Enqueue(flow.Request{Key: key(id), Placed: true, Bytes: 10}, time.Now())
	if err != nil {
		r.Fatal(err)
	}
	return ticket
}
