package lifecycle

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/broadcast"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/metrics"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/serve"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// opening is a Deployment whose Open calls a function of the test.
type opening struct {
	Deployment
	open func(ctx context.Context, leads func() bool) (store.Memory, StatusWriter, error)
}

func (o opening) Open(ctx context.Context, leads func() bool) (store.Memory, StatusWriter, error) {
	return o.open(ctx, leads)
}

// config returns the settings that each test needs.
func config() Config {
	return Config{Meter: metrics.New(), Log: slog.New(slog.DiscardHandler), Ready: func() {}}
}

// A term that still waits for the API server follows the Lease. If the Lease is lost and another
// control gets it, the term ends, but not the process.
func TestTermFollowsItsLeaseWhileItStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var leads func() bool
		r := New(config(), opening{Alone{}, func(ctx context.Context, l func() bool) (store.Memory, StatusWriter, error) {
			leads = l
			<-ctx.Done()
			return nil, nil, ctx.Err()
		}})
		ctx, lost := context.WithCancel(t.Context())
		pauses, ended := make(chan bool), make(chan error, 1)
		go func() { ended <- r.term(ctx, pauses) }()
		synctest.Wait()
		select {
		case pauses <- true:
		default:
			t.Fatal("the term does not receive the pause")
		}
		synctest.Wait()
		if leads() {
			t.Error("the term leads during the pause")
		}
		lost()
		if err := <-ended; err != nil {
			t.Errorf("the term ended with %v", err)
		}
	})
}

// channels is a StatusWriter that sends everything it receives to channels.
type channels struct {
	worlds   chan *objects.World
	gateways chan conditions.Input
	observed chan conditions.Observed
}

func (c channels) SetWorld(w *objects.World)       { c.worlds <- w }
func (c channels) SetGateways(in conditions.Input) { c.gateways <- in }
func (c channels) SetObserved(o conditions.Observed) {
	select {
	case c.observed <- o:
	default:
	}
}

// A term reports each World and each plan to the status writer, including those from before the
// term.
func TestTermWritesStatus(t *testing.T) {
	dir := t.TempDir()
	status := channels{make(chan *objects.World), make(chan conditions.Input), make(chan conditions.Observed, 1)}
	c := config()
	c.Place = place.Config{DrainLimit: time.Second, ScrapeInterval: time.Second, TickInterval: time.Second}
	r := New(c, opening{Alone{}, func(context.Context, func() bool) (store.Memory, StatusWriter, error) {
		m, err := store.Open(filepath.Join(dir, "db"), c.Log)
		return m, status, err
	}})
	var err error
	if r.server, err = serve.New(serve.Config{Listen: []string{"unix:" + filepath.Join(dir, "s")}}, c.Log); err != nil {
		t.Fatal(err)
	}
	world, first, second := objects.Build(objects.Set{}), new(objects.Network), new(objects.Network)
	r.Worlds.Set(world)
	r.gateways.Set(&conditions.Input{Network: first})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.term(ctx, nil) }()
	if w := <-status.worlds; w != world {
		t.Errorf("the World is %p, want %p", w, world)
	}
	if in := <-status.gateways; in.Network != first {
		t.Errorf("the Network is %p, want %p", in.Network, first)
	}
	r.gateways.Set(&conditions.Input{Network: second})
	if in := <-status.gateways; in.Network != second {
		t.Errorf("then the Network is %p, want %p", in.Network, second)
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// unread is an [Alone] that never learns the state of Gateways.
type unread struct{ Alone }

func (unread) KeepGateways(ctx context.Context, _ func() bool, _ *broadcast.Value[conditions.Input], _ func(conditions.Input)) error {
	<-ctx.Done()
	return nil
}

// last is a StatusWriter that keeps the latest input.
type last struct{ latest }

// Even if the state of Gateways is unknown for long, no condition reports that a route attaches to
// none.
func TestUnknownGatewaysAreNotMissing(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := config()
		c.XDSAddress = "unix:" + filepath.Join(dir, "e")
		var status last
		status.StatusWriter = noStatus{}
		r := New(c, opening{unread{Alone{Log: c.Log}}, func(context.Context, func() bool) (store.Memory, StatusWriter, error) {
			m, err := store.Open(filepath.Join(dir, "db"), c.Log)
			return m, &status, err
		}})
		var err error
		if r.server, err = serve.New(serve.Config{Listen: []string{"unix:" + filepath.Join(dir, "s")}}, c.Log); err != nil {
			t.Fatal(err)
		}
		route := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"}}
		route.Spec.ParentRefs = []v1alpha1.ParentReference{{Name: "g"}}
		r.Worlds.Set(objects.Build(objects.Set{Routes: []v1alpha1.LLMRoute{route}}))
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.term(ctx, nil) }()
		time.Sleep(2 * time.Minute) // of the bubble's clock
		synctest.Wait()
		status.mu.Lock()
		in := status.in
		if !status.observed {
			t.Error("the state of endpoints is not reported")
		}
		status.mu.Unlock()
		for _, s := range conditions.Of(in) {
			for _, c := range s.Conditions {
				if c.Type != v1alpha1.ConditionResolvedRefs && (c.Status != metav1.ConditionUnknown || c.Reason != "Pending") {
					t.Errorf("%s: %s is %s, %s", s.Object, c.Type, c.Status, c.Reason)
				}
			}
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Every control plans, whether it leads or not, and keeps the plans for the status of objects.
func TestPlansAreKeptForStatuses(t *testing.T) {
	c := config()
	c.XDSAddress = "unix:" + filepath.Join(t.TempDir(), "e")
	r := New(c, Alone{})
	n := network.Read(t, network.Standard("kind: Namespace\nmetadata: {name: ns}"))
	r.Worlds.Set(&objects.World{Network: n})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.serveEnvoys(ctx) }()
	for planned := false; !planned; {
		in, newer := r.gateways.Get()
		if planned = in != nil; !planned {
			<-newer
			continue
		}
		if in.Network != n || len(in.Attachments.Gateways) != 1 || len(in.Plans.Gateways) != 1 ||
			in.Plans.Gateways[0].Gateway != in.Attachments.Gateways[0].Name {
			t.Errorf("it is %+v", in)
		}
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
