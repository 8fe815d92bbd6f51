package placementserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/placementserver"
	"github.com/headgate/headgate/internal/objects"
)

var pool = objects.Name{Namespace: "default", Name: "llama"}

func model(id string) decide.Key { return decide.Key{Pool: pool, ID: id} }

func copyOf(id, endpoint string) decide.CopyKey {
	return decide.CopyKey{ModelKey: model(id), Endpoint: endpoint}
}

// copies returns a change that sets the state of copies at the endpoint e1.
func copies(state decide.CopyState, ids ...string) decide.Change {
	c := decide.Change{Copies: make(map[decide.CopyKey]decide.CopyChange)}
	for _, id := range ids {
		c.Copies[copyOf(id, "e1")] = decide.CopyChange{State: state}
	}
	return c
}

func gone(ids ...string) decide.Change {
	c := copies(decide.Unloading, ids...)
	for key := range c.Copies {
		c.Copies[key] = decide.CopyChange{}
	}
	return c
}

// placer records what it receives.
type placer struct {
	mu       sync.Mutex // guards the fields below
	wants    map[string]map[string]decide.Want
	used     map[string]time.Duration // reported time since the last use of each model
	waited   time.Duration
	requests map[string]int
	inFlight map[string]int
	missing  []string
	drained  []string
	leaving  map[string]decide.Leaving

	endpoints map[string]conditions.Endpoint
	extproc   conditions.Extproc
}

func (p *placer) Observed(_ string, all map[string]conditions.Endpoint, is *conditions.Extproc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endpoints = all
	if is != nil {
		p.extproc = *is
	}
}

func (p *placer) Leaving(_ string, all map[string]decide.Leaving) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving = all
}

func (p *placer) Wanted(who string, key decide.Key, w decide.Want) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wants[who] == nil {
		p.wants[who] = make(map[string]decide.Want)
	}
	p.wants[who][key.ID] = w
}

func (p *placer) Unwanted(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.wants, who)
}

func (p *placer) Used(all map[decide.Key]decide.Use) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, u := range all {
		p.waited += u.Waited
		p.used[key.ID], p.requests[key.ID] = time.Since(u.Last), p.requests[key.ID]+u.Requests
	}
}

func (p *placer) InFlight(all map[decide.CopyKey]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, n := range all {
		p.inFlight[key.ID] = n
	}
}

func (p *placer) Missing(key decide.CopyKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.missing = append(p.missing, key.ID)
}

func (p *placer) Drained(key decide.CopyKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drained = append(p.drained, key.ID)
}

// takeDrained returns the copies that were reported as drained since the last call.
func (p *placer) takeDrained() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.drained
	p.drained = nil
	return was
}

// waiting returns how many requests wait for each model, over all extprocs.
func (p *placer) waiting() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]int)
	for _, of := range p.wants {
		for id, w := range of {
			all[id] += w.Requests
		}
	}
	return all
}

// world is a Server with a fake clock.
type world struct {
	*placementserver.Server
	t      *testing.T
	placer *placer
	door   *bufconn.Listener
}

func inMemory(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			Server: placementserver.New(slog.New(slog.DiscardHandler)), t: t, door: bufconn.Listen(1 << 16),
			placer: &placer{
				wants: map[string]map[string]decide.Want{}, used: map[string]time.Duration{}, requests: map[string]int{},
				inFlight: map[string]int{},
			},
		}
		w.SetPlacer(w.placer)
		server := grpc.NewServer()
		placement.RegisterPlacementServer(server, w.Server)
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(w.door) })
		test(w)
		server.Stop()
		serving.Wait()
		w.after(time.Minute) // let the remaining timers end
	})
}

// after lets time pass.
func (w *world) after(d time.Duration) {
	time.Sleep(d) // passes on the fake clock
	synctest.Wait()
}

// extproc is a client with the state that it received.
type extproc struct {
	t      *testing.T
	stream placement.Placement_ConnectClient
	leave  func()

	mu        sync.Mutex // guards the fields below
	updates   []*placement.Update
	copies    map[string]placement.Copy_State
	failures  map[string]string
	models    []string // registered models, sorted
	endpoints []string
	others    map[string]uint32
	leaving   map[string]*placement.Leaving
	vmodels   map[string]string             // active models, by VModel id
	backlogs  map[string]*placement.Backlog // backlogs of the others, by endpoint
	sentAll   []time.Time                   // when Updates with backlogs arrived
	complete  int                           // version of the last Update that was marked complete
	err       error
}

// connect opens a stream whose first Report names the process.
func (w *world) connect(process string) *extproc {
	w.t.Helper()
	return w.connectWith(&placement.Report{Process: process})
}

// connectWith opens a stream with this first Report.
func (w *world) connectWith(first *placement.Report) *extproc {
	w.t.Helper()
	x := w.deafWith(first)
	go func() {
		for {
			u, err := x.stream.Recv()
			x.mu.Lock()
			x.err = err
			if err == nil {
				x.apply(u)
			}
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	synctest.Wait()
	return x
}

// connectWithoutReading connects without reading Updates.
func (w *world) connectWithoutReading(process string) *extproc {
	w.t.Helper()
	return w.deafWith(&placement.Report{Process: process})
}

func (w *world) deafWith(first *placement.Report) *extproc {
	w.t.Helper()
	conn, err := grpc.NewClient("passthrough:///control", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.door.DialContext(ctx) }))
	if err != nil {
		w.t.Fatal(err)
	}
	x := &extproc{
		t: w.t, copies: map[string]placement.Copy_State{}, failures: map[string]string{}, others: map[string]uint32{},
		leaving: map[string]*placement.Leaving{}, vmodels: map[string]string{}, backlogs: map[string]*placement.Backlog{},
	}
	if x.stream, err = placement.NewPlacementClient(conn).Connect(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	x.leave = func() { _ = conn.Close(); synctest.Wait() }
	w.t.Cleanup(func() { _ = conn.Close() })
	x.send(first)
	return x
}

// apply applies an Update. The caller holds mu.
func (x *extproc) apply(u *placement.Update) {
	x.updates = append(x.updates, u)
	for _, c := range u.GetCopies() {
		if x.copies[c.GetCopy().GetKey().GetModel()] = c.GetState(); c.GetState() == placement.Copy_GONE {
			delete(x.copies, c.GetCopy().GetKey().GetModel())
		}
	}
	for _, f := range u.GetFailures() {
		if x.failures[f.GetKey().GetModel()] = f.GetReason(); f.GetReason() == "" {
			delete(x.failures, f.GetKey().GetModel())
		}
	}
	for _, r := range u.GetRegistered() {
		id := r.GetKey().GetModel()
		x.models = slices.DeleteFunc(x.models, func(m string) bool { return m == id })
		if !r.GetGone() {
			x.models = append(x.models, id)
		}
	}
	for _, v := range u.GetVmodels() {
		id := v.GetKey().GetModel()
		if x.vmodels[id] = v.GetActive(); v.GetCanary() != "" {
			x.vmodels[id] += fmt.Sprintf(", %d %% to %s", v.GetPercent(), v.GetCanary())
		}
		if v.GetActive() == "" {
			delete(x.vmodels, id)
		}
	}
	for _, f := range u.GetInFlight() {
		x.others[f.GetCopy().GetKey().GetModel()] = f.GetRequests()
	}
	for _, l := range u.GetLeaving() {
		x.leaving[l.GetEndpoint()] = l
	}
	for _, b := range u.GetBacklogs() {
		x.backlogs[b.GetEndpoint()] = b
	}
	if len(u.GetBacklogs()) > 0 {
		x.sentAll = append(x.sentAll, time.Now())
	}
	if u.Endpoints != nil {
		x.endpoints = u.GetEndpoints().GetAddresses()
	}
	if u.GetComplete() {
		x.complete = int(u.GetVersion())
	}
	slices.Sort(x.models)
}

// send sends a Report, and waits until its immediate effects are complete.
func (x *extproc) send(r *placement.Report) {
	x.t.Helper()
	if err := x.stream.Send(r); err != nil {
		x.t.Error(err)
	}
	synctest.Wait()
}

// acknowledge acknowledges all Updates received, and reports the numbers of requests in flight at
// copies.
func (x *extproc) acknowledge(inFlight map[string]uint32) {
	x.t.Helper()
	x.send(&placement.Report{Applied: uint64(len(x.heard())), InFlight: flying(inFlight)})
}

// reportInFlight reports the numbers of requests in flight at copies.
func (x *extproc) reportInFlight(inFlight map[string]uint32) {
	x.t.Helper()
	x.send(&placement.Report{InFlight: flying(inFlight)})
}

func flying(requests map[string]uint32) (all []*placement.InFlight) {
	for _, id := range slices.Sorted(maps.Keys(requests)) {
		all = append(all, &placement.InFlight{Copy: wireCopy(id), Requests: requests[id]})
	}
	return all
}

func wireModel(id string) *placement.ModelKey {
	return &placement.ModelKey{Pool: pool.String(), Model: id}
}

func wireCopy(id string) *placement.CopyKey {
	return &placement.CopyKey{Key: wireModel(id), Endpoint: "e1"}
}

func (x *extproc) heard() []*placement.Update {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.updates)
}

// state prints the state that the extproc received.
func (x *extproc) state() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return fmt.Sprintf("%v %v %v %v", x.copies, x.failures, x.models, x.endpoints)
}

// numbered returns n names.
func numbered(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("m%05d", i)
	}
	return ids
}
