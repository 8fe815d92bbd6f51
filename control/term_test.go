package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/control/attach/conditions"
	"github.com/headgate/headgate/control/broadcast"
	"github.com/headgate/headgate/control/metrics"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/prestop"
	"github.com/headgate/headgate/control/serve"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// While a term reads what an earlier one remembers, the Lease may be lost, and another may have it: that ends the term, and not
// the process.
func TestATermHearsOfItsLeaseWhileItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var leads func() bool
		o := &office{worlds: broadcast.New[objects.World](), meter: metrics.New(), log: slog.New(slog.DiscardHandler), ready: func() {}}
		o.remember = func(ctx context.Context, l func() bool) (store.Memory, teller, error) {
			leads = l
			<-ctx.Done()
			return nil, nil, ctx.Err()
		}
		ctx, lost := context.WithCancel(t.Context())
		pauses, ended := make(chan bool), make(chan error, 1)
		go func() { ended <- o.term(ctx, pauses) }()
		synctest.Wait()
		select {
		case pauses <- true:
		default:
			t.Fatal("it does not hear of its Lease")
		}
		synctest.Wait()
		if leads() {
			t.Error("it leads")
		}
		lost()
		if err := <-ended; err != nil {
			t.Errorf("its end is %v", err)
		}
	})
}

// heard is a teller that passes on what it is to tell.
type heard struct {
	worlds   chan *objects.World
	gateways chan conditions.Input
}

func (h heard) SetWorld(w *objects.World)       { h.worlds <- w }
func (h heard) SetGateways(in conditions.Input) { h.gateways <- in }

// What became of objects is told in a term, each World and each plan, those too that were there before it began.
func TestATermTellsWhatBecameOfObjects(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	o := &office{
		config: config{drainLimit: time.Second, lookInterval: time.Second, tickInterval: time.Second}, meter: metrics.New(), log: log, ready: func() {},
		worlds: broadcast.New[objects.World](), gateways: broadcast.New[conditions.Input](), announce: func(context.Context, func() bool) {},
	}
	o.keep, o.prestop = o.tellOnly, prestop.New(log)
	var err error
	if o.server, err = serve.New(serve.Config{Listen: []string{"unix:" + filepath.Join(dir, "s")}}, log); err != nil {
		t.Fatal(err)
	}
	h := heard{make(chan *objects.World), make(chan conditions.Input)}
	o.remember = func(context.Context, func() bool) (store.Memory, teller, error) {
		m, err := store.Open(filepath.Join(dir, "db"), log)
		return m, h, err
	}
	world, first, second := objects.Build(objects.Set{}), new(objects.Network), new(objects.Network)
	o.worlds.Set(world)
	o.gateways.Set(&conditions.Input{Network: first})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.term(ctx, nil) }()
	if w := <-h.worlds; w != world {
		t.Errorf("it tells of the World %p, want %p", w, world)
	}
	if in := <-h.gateways; in.Network != first {
		t.Errorf("it tells of the Network %p, want %p", in.Network, first)
	}
	o.gateways.Set(&conditions.Input{Network: second})
	if in := <-h.gateways; in.Network != second {
		t.Errorf("then it tells of the Network %p, want %p", in.Network, second)
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Every control plans, whether it leads or not; what its plans say of objects is there for the term in which it does.
func TestPlansAreThereToBeTold(t *testing.T) {
	o := &office{
		meter:  metrics.New(),
		config: config{envoys: "unix:" + filepath.Join(t.TempDir(), "e")}, log: slog.New(slog.DiscardHandler),
		worlds: broadcast.New[objects.World](), gateways: broadcast.New[conditions.Input](),
	}
	n := network.Read(t, network.Standard("kind: Namespace\nmetadata: {name: ns}"))
	o.worlds.Set(&objects.World{Network: n})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.serveEnvoys(ctx) }()
	for told := false; !told; {
		in, newer := o.gateways.Get()
		if told = in != nil; !told {
			<-newer
			continue
		}
		if in.Network != n || len(in.Attachments.Gateways) != 1 || len(in.Plans.Gateways) != 1 || in.Plans.Gateways[0].Gateway != in.Attachments.Gateways[0].Name {
			t.Errorf("it is %+v", in)
		}
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
