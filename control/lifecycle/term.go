package lifecycle

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/modelmesh"
	"github.com/headgate/headgate/control/place/placementserver"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
)

// planPatience is how long the conditions of objects wait for the state of Gateways. Without
// Gateway API's CRDs, this state never arrives. The conditions then report that Gateways are
// unknown.
const planPatience = 30 * time.Second

// term runs a leadership term: this control makes decisions until ctx ends. Then all state of the
// term is dropped.
//
// Pauses sends true when this control may have lost the lead, and false when it leads again. During
// a pause control serves extprocs with the state that it has, and calls no engine.
func (r *Runtime) term(ctx context.Context, pauses <-chan bool) (err error) {
	var paused atomic.Bool
	leads := func() bool { return !paused.Load() }
	memory, status, err := r.open(ctx, pauses, &paused)
	if ctx.Err() != nil && err != nil {
		return nil
	} else if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	meter, c := r.config.Meter, r.config.Place
	board := placementserver.New(r.config.Log)
	c.Memory, c.Publisher, c.Meter, c.Log = memory, board, meter, r.config.Log
	placer, err := place.New(c)
	if err != nil {
		return err
	}
	board.SetPlacer(placer)
	kept := &latest{StatusWriter: status, placer: placer}
	status = kept
	meter.Follow(board, placer, kept.conditions)
	defer meter.Follow(nil, nil, nil)
	defer meter.Leads(false)
	setPaused := func() {
		placer.Pause(paused.Load())
		meter.Leads(leads())
	}
	setPaused()

	group, ctx := errgroup.WithContext(ctx)
	running, loaded := make(chan struct{}), make(chan struct{})
	ready := sync.OnceFunc(func() {
		r.config.Ready()
		close(loaded)
	})
	group.Go(func() error { return placer.Run(ctx, func() { close(running) }) })
	group.Go(func() error {
		<-running
		r.Worlds.Follow(ctx, func(w *objects.World) {
			placer.SetWorld(w)
			status.SetWorld(w)
			ready()
		})
		return nil
	})
	if r.config.XDSAddress != "" {
		status.SetGateways(conditions.Input{Pending: true})
	}
	planned := make(chan struct{}) // closed when the state of Gateways is known, or there are none
	known := sync.OnceFunc(func() { close(planned) })
	if r.config.XDSAddress == "" {
		known()
	}
	group.Go(func() error {
		return r.deployment.KeepGateways(ctx, leads, r.gateways, func(in conditions.Input) {
			status.SetGateways(in)
			known()
		})
	})
	group.Go(func() error {
		select {
		case <-loaded:
		case <-ctx.Done():
			return nil
		}
		late := time.NewTimer(planPatience)
		defer late.Stop()
		select {
		case <-planned:
		case <-late.C:
		case <-ctx.Done():
			return nil
		}
		placer.KeepObserved(ctx, status.SetObserved)
		return nil
	})
	group.Go(func() error {
		for {
			select {
			case is := <-pauses:
				paused.Store(is)
				setPaused()
			case <-ctx.Done():
				return nil
			}
		}
	})
	group.Go(func() error {
		select { // wait for objects: without them, every model is unknown
		case <-loaded:
		case <-ctx.Done():
			return nil
		}
		end := r.server.Lead(board, modelmesh.New(placer))
		defer r.prestop.Lead(placer)()
		r.deployment.Announce(ctx, leads)
		<-ctx.Done()
		board.Close()
		end()
		return nil
	})
	return group.Wait()
}

// open opens the store with the state of earlier terms. This may take as long as an outage of the
// API server, so open receives from pauses meanwhile.
func (r *Runtime) open(ctx context.Context, pauses <-chan bool, paused *atomic.Bool) (m store.Memory, s StatusWriter, err error) {
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		m, s, err = r.deployment.Open(ctx, func() bool { return !paused.Load() })
	}()
	for {
		select {
		case is := <-pauses:
			paused.Store(is)
		case <-opened:
			return m, s, err
		}
	}
}
