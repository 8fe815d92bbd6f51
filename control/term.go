package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/control/meter"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/stream"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/reach"
)

// office is what a control needs to be the one that decides.
type office struct {
	config
	access reach.Access
	worlds *latest
	meter  *meter.Meter
	log    *slog.Logger
	// open opens what an earlier term remembers, for a new one, which writes nothing while decides is false.
	open func(ctx context.Context, decides func() bool) (memory, error)
	// began is called when a term has its objects, maybe more than once.
	began func()
	// cluster is nil where there is none.
	cluster *cluster
}

// memory is a [place.Store] that one term has at a time.
type memory interface {
	place.Store
	Close() error
}

// term is a time in which this process decides. It ends with ctx, and all that it knew with it.
//
// Pauses says when the term is paused, and when it goes on: meanwhile nobody knows who decides, so that extprocs are served
// on with what is known, and no engine is told anything.
func (o office) term(ctx context.Context, pauses <-chan bool) (err error) {
	var paused atomic.Bool
	decides := func() bool { return !paused.Load() }
	memory, err := o.remember(ctx, decides, pauses, &paused)
	if ctx.Err() != nil && err != nil {
		return nil
	} else if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	board := stream.New(o.log)
	placer, err := place.New(place.Config{
		Store: memory, Log: o.log, Access: o.access, Board: board, Meter: o.meter, DrainLimit: o.drainLimit, LookInterval: o.lookInterval,
		RegisteredPool: o.pool(),
	})
	if err != nil {
		return err
	}
	board.SetPlacer(placer)
	o.meter.Follow(board, placer)
	defer o.meter.Follow(nil, nil)
	placer.Pause(paused.Load())
	o.meter.Decides(!paused.Load())
	defer o.meter.Decides(false)

	group, ctx := errgroup.WithContext(ctx)
	running, loaded := make(chan struct{}), make(chan struct{})
	ready := sync.OnceFunc(func() {
		o.began()
		close(loaded)
	})
	group.Go(func() error { return placer.Run(ctx, func() { close(running) }) })
	group.Go(func() error {
		<-running
		o.worlds.follow(ctx, func(w *objects.World) {
			placer.SetWorld(w)
			ready()
		})
		return nil
	})
	group.Go(func() error {
		for {
			select {
			case is := <-pauses:
				paused.Store(is)
				placer.Pause(is)
				o.meter.Decides(!is)
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
		return serve(ctx, o.config, services{board: board, placer: placer, log: o.log})
	})
	if o.cluster != nil {
		group.Go(func() error {
			<-running
			return o.cluster.serve(ctx, o, loaded, decides)
		})
	}
	return group.Wait()
}

// remember opens what an earlier term remembers, which may take as long as the API server is away, and hears meanwhile whether
// the term is paused.
func (o office) remember(ctx context.Context, decides func() bool, pauses <-chan bool, paused *atomic.Bool) (m memory, err error) {
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		m, err = o.open(ctx, decides)
	}()
	for {
		select {
		case is := <-pauses:
			paused.Store(is)
		case <-opened:
			return m, err
		}
	}
}
