package placementclient_test

import (
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/placementserver"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/placementclient"
)

// nobody is a fake of control's decisions that never places a model.
type nobody struct{}

func (nobody) Wanted(string, decide.Key, decide.Want)                               {}
func (nobody) Unwanted(string)                                                      {}
func (nobody) Leaving(string, map[string]decide.Leaving)                            {}
func (nobody) Used(map[decide.Key]decide.Use)                                       {}
func (nobody) InFlight(map[decide.CopyKey]int)                                      {}
func (nobody) Missing(decide.CopyKey)                                               {}
func (nobody) Drained(decide.CopyKey)                                               {}
func (nobody) Observed(string, map[string]conditions.Endpoint, *conditions.Extproc) {}

// aBoard starts the real placement server of control. It returns the server's address.
func aBoard(t *testing.T) (address string, stop func()) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := placementserver.New(slog.New(slog.DiscardHandler))
	s.SetPlacer(nobody{})
	s.Ready()
	server := grpc.NewServer()
	placement.RegisterPlacementServer(server, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	stop = func() {
		server.Stop()
		serving.Wait()
	}
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// anExtproc returns an extproc that is connected to control until the test ends or leave is called.
func anExtproc(t *testing.T, address string) (r *rig, leave func()) {
	r = &rig{T: t}
	return r, r.join(address)
}

// join connects the rig to control until the test ends or leave is called.
func (r *rig) join(address string) (leave func()) {
	news := placementclient.NewNews()
	r.flow = flow.New(flow.Config{
		View: func() *endpointstate.View { return r.fleet.View() }, MaxQueued: 10, MaxBytes: 1 << 20,
		Changed: news.Changed, Turns: flow.NewTurns(),
	})
	r.fleet = aFleet(r.flow.Published)
	return r.connections(address, news)
}

// endpoint returns the first endpoint in a view.
func (r *rig) endpoint() *pick.Endpoint {
	return r.fleet.View().Snapshot.Pools[thePool.String()].Endpoints[0]
}

// send sends a request to the first endpoint.
func (r *rig) send() *fleet.InFlight {
	r.Helper()
	p := r.fleet.View().Snapshot.Pools[thePool.String()]
	return r.fleet.Begin(pick.Decision{Endpoint: p.Endpoints[0], Copy: &p.Any[0]})
}

// Through control, other extprocs see the requests of one extproc at once, without a new view. The
// requests disappear when they end, or when the extproc or control disconnects.
func TestExtprocsKnowRequestsOfOthers(t *testing.T) {
	address, stop := aBoard(t)
	x, leave := anExtproc(t, address)
	y, _ := anExtproc(t, address)
	theirs := y.endpoint().Peers // from a view that does not change
	quickest := time.Hour
	for range 5 {
		began := time.Now()
		sent := x.send()
		y.await("y sees the request", func() bool { return theirs.Requests.Load() == 1 })
		quickest = min(quickest, time.Since(began))
		sent.End()
		y.await("y sees its end", func() bool { return theirs.Requests.Load() == 0 })
	}
	if t.Logf("at best, a request was visible after %v", quickest); quickest > 100*time.Millisecond {
		t.Errorf("that is too late")
	}
	ours := x.endpoint().Backlog
	ours.Through.Store(time.Now().Add(time.Minute).UnixNano())
	ours.Beside.Store(5)
	ours.Urgency.Store(6)
	ours.Tokens.Store(7)
	x.send()
	y.send()
	y.await("y sees its work", func() bool {
		left, all := time.Until(time.Unix(0, theirs.Through.Load())), time.Until(time.Unix(0, y.endpoint().Backlog.Queue.Load()))
		return left > 50*time.Second && left < 61*time.Second && all > 50*time.Second && all < 61*time.Second &&
			theirs.Beside.Load() == 5 && theirs.Urgency.Load() == 6 && theirs.Tokens.Load() == 7
	})
	x.await("x sees y's", func() bool { return x.endpoint().Peers.Requests.Load() == 1 })
	if own := theirs.Requests.Load(); own != 1 {
		t.Errorf("y sees %d requests, and x has one", own)
	}
	leave()
	y.await("y sees that x has nothing any more", func() bool {
		return theirs.Requests.Load() == 0 && theirs.Through.Load() <= time.Now().UnixNano() &&
			y.endpoint().Backlog.Queue.Load() <= time.Now().UnixNano() && theirs.Tokens.Load() == 0
	})
	z, _ := anExtproc(t, address)
	z.await("a later extproc sees y's", func() bool { return z.endpoint().Peers.Requests.Load() == 1 })
	stop()
	z.await("when control has gone, peers are forgotten", func() bool { return z.endpoint().Peers.Requests.Load() == 0 })
}

// Updates that contain only backlogs take effect at once. No report is sent to acknowledge them:
// the next report does that, too.
func TestBacklogsAreNotAcknowledged(t *testing.T) {
	r := newRig(t)
	s := r.next()
	early := &placement.Update{Backlogs: []*placement.Backlog{{Endpoint: a, Requests: 1}}}
	s.say(early)
	r.await("it is in force before the state is complete", func() bool {
		return r.fleet.View().Snapshot.Pools[thePool.String()].Endpoints[0].Pending() == 1
	})
	s.say(complete(is("m", a, placement.Copy_LOADED)))
	s.inForce()
	s.mu.Lock()
	before := s.reports
	s.mu.Unlock()
	view := r.fleet.View()
	for n := range uint32(20) {
		s.say(&placement.Update{Backlogs: []*placement.Backlog{{Endpoint: a, Requests: n}, {Endpoint: "nowhere", Requests: 1}}})
	}
	r.await("the last is in force", func() bool { return r.endpoint().Pending() == 19 })
	if r.fleet.View() != view {
		t.Error("it published a new view")
	}
	flight, _ := r.begin("m", 1)
	s.until("what is in flight is reported, with the last version", func() bool { return s.applied == s.version })
	flight.End()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.reports - before; n > 4 { // reports when the request begins and ends, and one per second
		t.Errorf("it took %d reports", n)
	}
}

// The first Update on a stream contains the current state.
func TestStreamBeginsWithTheCurrentState(t *testing.T) {
	r := newRig(t)
	s := r.next()
	sent := r.send()
	s.until("control sees the request", func() bool { return s.backlogs[a] == 1 })
	r.control.stop()
	r.control = r.serve()
	s = r.next()
	s.until("it is reported again", func() bool { return s.backlogs[a] == 1 })
	sent.End()
	s.until("control sees its end", func() bool { return s.backlogs[a] == 0 })
}
