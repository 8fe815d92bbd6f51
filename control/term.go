package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/modelmesh"
	"github.com/headgate/headgate/control/place/placementserver"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
)

// term is a time in which this process leads. It ends with ctx, and all that it knew with it.
//
// Pauses says when the term is paused, and when it goes on: meanwhile nobody knows who leads, so that extprocs are served on
// with what is known, and no engine is told anything.
func (o *office) term(ctx context.Context, pauses <-chan bool) (err error) {
	var paused atomic.Bool
	leads := func() bool { return !paused.Load() }
	remembered, told, err := o.open(ctx, pauses, &paused)
	if ctx.Err() != nil && err != nil {
		return nil
	} else if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remembered.Close()) }()
	board := placementserver.New(o.log)
	placer, err := place.New(place.Config{
		Memory: remembered, Log: o.log, Access: o.access, Board: board, Meter: o.meter, DrainLimit: o.drainLimit, LookInterval: o.lookInterval, TickInterval: o.tickInterval,
		RegisteredPool: o.pool(),
	})
	if err != nil {
		return err
	}
	board.SetPlacer(placer)
	o.meter.Follow(board, placer)
	defer o.meter.Follow(nil, nil)
	defer o.meter.Leads(false)
	tell := func() {
		placer.Pause(paused.Load())
		o.meter.Leads(leads())
	}
	tell()

	group, ctx := errgroup.WithContext(ctx)
	running, loaded := make(chan struct{}), make(chan struct{})
	ready := sync.OnceFunc(func() {
		o.ready()
		close(loaded)
	})
	group.Go(func() error { return placer.Run(ctx, func() { close(running) }) })
	group.Go(func() error {
		<-running
		o.worlds.Follow(ctx, func(w *objects.World) {
			placer.SetWorld(w)
			told.SetWorld(w)
			ready()
		})
		return nil
	})
	group.Go(func() error { return o.keep(ctx, leads, told.SetGateways) })
	group.Go(func() error {
		for {
			select {
			case is := <-pauses:
				paused.Store(is)
				tell()
			case <-ctx.Done():
				return nil
			}
		}
	})
	group.Go(func() error {
		select { // without objects every model would be unknown
		case <-loaded:
		case <-ctx.Done():
			return nil
		}
		end := o.server.Lead(board, modelmesh.New(placer))
		defer o.prestop.Lead(placer)()
		o.announce(ctx, leads)
		<-ctx.Done()
		board.Close()
		end()
		return nil
	})
	return group.Wait()
}

// open opens what an earlier term remembers, which may take as long as the API server is away, and hears meanwhile whether the
// term is paused.
func (o *office) open(ctx context.Context, pauses <-chan bool, paused *atomic.Bool) (m store.Memory, told teller, err error) {
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		m, told, err = o.remember(ctx, func() bool { return !paused.Load() })
	}()
	for {
		select {
		case is := <-pauses:
			paused.Store(is)
		case <-opened:
			return m, told, err
		}
	}
}
