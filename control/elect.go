package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// Times of the Lease, those of Kubernetes' own controllers. Its holder renews it every retryPeriod; one that could not for
// renewDeadline stops deciding, before leaseDuration lets another begin.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// giveBackTimeout bounds what the end of a process waits for the API server.
	giveBackTimeout = 2 * time.Second
)

// election lets one control of several decide: the one that holds a Lease. A term is from when it gets the Lease until
// another holder is seen. A Lease that ran out ends no term: whoever cannot reach the API server cannot tell an outage,
// during which nobody else decides either, from being cut off. The term is paused then, and goes on if the Lease was never
// another's.
type election struct {
	lock                      resourcelock.Interface
	duration, deadline, retry time.Duration
	log                       *slog.Logger
}

// news is what became of the Lease.
type news struct {
	// won is ended when the Lease is lost again; nil in other news.
	won context.Context
	// transitions is how often the Lease had had another holder then.
	transitions int
	lost        bool
	// other has the Lease.
	other string
}

// run holds terms until ctx ends, or a term does. It gives the Lease back at the end, when no term goes on any more.
func (e election) run(ctx context.Context, term func(ctx context.Context, pauses <-chan bool) error) error {
	campaign, retire := context.WithCancel(context.WithoutCancel(ctx))
	happened := make(chan news)
	retired := make(chan struct{})
	tell := func(n news) {
		select {
		case happened <- n:
		case <-campaign.Done():
		}
	}
	lock := &watched{Interface: e.lock, limit: e.deadline / 2, log: e.log}
	fault := make(chan error, 1)
	go func() {
		defer close(retired)
		for campaign.Err() == nil {
			elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
				Lock: lock, LeaseDuration: e.duration, RenewDeadline: e.deadline, RetryPeriod: e.retry,
				// The callback would have to wait for the Lease to be given back, which takes long where nobody answers.
				ReleaseOnCancel: false,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: func(won context.Context) { tell(news{won: won, transitions: int(lock.transitions.Load())}) },
					OnStoppedLeading: func() { tell(news{lost: true}) },
					OnNewLeader: func(identity string) {
						if identity != e.lock.Identity() && identity != "" {
							tell(news{other: identity})
						}
					},
				},
			})
			if err != nil {
				fault <- err
				return
			}
			elector.Run(klog.NewContext(campaign, logr.Discard())) // it would tell of every try
		}
	}()
	defer func() {
		retire()
		<-retired
		e.giveBack(context.WithoutCancel(ctx))
	}()

	var on *running
	defer func() { _ = on.end() }()
	held := func() bool { return false }
	for {
		select {
		case n := <-happened:
			if n.won != nil {
				held = func() bool { return n.won.Err() == nil }
			}
			switch {
			case n.won != nil && n.won.Err() != nil: // and lost
			case n.other != "" && held(): // and gone: each is told of by a goroutine of its own, in any order
			case n.won != nil && on != nil && on.transitions == n.transitions:
				e.log.Info("this control decides on: its Lease was nobody else's")
				on.pause(false)
			case n.won != nil:
				if err := on.end(); err != nil {
					return err
				}
				e.log.Info("this control decides")
				on = begin(ctx, n.transitions, term)
			case n.lost && on != nil:
				e.log.Warn("the Lease could not be renewed: nothing is loaded or unloaded until somebody has it again")
				on.pause(true)
			case n.other != "":
				e.log.Info("another control decides", "control", n.other)
				if on != nil {
					on.pause(true) // what it knows is not to be written any more
				}
				if err := on.end(); err != nil {
					return err
				}
				on = nil
			}
		case <-on.over():
			return on.end()
		case err := <-fault:
			return fmt.Errorf("elect who decides: %w", err)
		case <-ctx.Done():
			return on.end()
		}
	}
}

// giveBack lets another control begin at once.
func (e election) giveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, giveBackTimeout)
	defer cancel()
	record, _, err := e.lock.Get(ctx)
	if err != nil || record.HolderIdentity != e.lock.Identity() {
		return
	}
	record.HolderIdentity, record.LeaseDurationSeconds = "", 1
	if err := e.lock.Update(ctx, *record); err != nil {
		e.log.Warn("the Lease could not be given back; it runs out", "err", err)
	}
}

// running is a term that goes on. A nil one is none.
type running struct {
	transitions int
	stop        context.CancelFunc
	pauses      chan bool
	done        chan struct{} // closed when it is over
	err         error         // then
}

func begin(ctx context.Context, transitions int, term func(context.Context, <-chan bool) error) *running {
	ctx, stop := context.WithCancel(ctx)
	r := &running{transitions: transitions, stop: stop, pauses: make(chan bool), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = term(ctx, r.pauses)
	}()
	return r
}

func (r *running) pause(paused bool) {
	select {
	case r.pauses <- paused:
	case <-r.done:
	}
}

// over is closed when a term has ended by itself.
func (r *running) over() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.done
}

// end ends a term and returns why it had ended before, if it had.
func (r *running) end() error {
	if r == nil {
		return nil
	}
	r.stop()
	<-r.done
	return r.err
}

// watched is a lock that knows how often it had another holder, and lets the last holder come first after an outage: what
// it read before is as new then, so that others wait as long as for one that they have just heard of. Whoever decided knows
// the most, and extprocs need not find another, of which the node's proxies learn late.
//
// It bounds every call, which electors do while they hold a Lease alone: one that is lost on its way would be waited for long
// after the API server is back. And it tells of an outage once.
//
// One elector uses it at a time.
type watched struct {
	resourcelock.Interface
	limit       time.Duration // of a call; two are made to renew a Lease
	log         *slog.Logger
	failing     bool // that was told
	transitions atomic.Int64
	blind       bool // the last reading failed
	outages     int64
}

func (w *watched) Get(ctx context.Context) (record *resourcelock.LeaderElectionRecord, raw []byte, err error) {
	err = w.call(ctx, func(ctx context.Context) error {
		record, raw, err = w.Interface.Get(ctx)
		return err
	})
	if err != nil {
		w.blind = w.blind || !apierrors.IsNotFound(err)
		return nil, nil, err
	}
	if w.blind {
		w.blind = false
		w.outages++
	}
	return record, strconv.AppendInt(slices.Clip(raw), w.outages, 10), nil // electors compare it with what they read before
}

func (w *watched) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := w.call(ctx, func(ctx context.Context) error { return w.Interface.Create(ctx, r) })
	if err == nil {
		w.transitions.Store(int64(r.LeaderTransitions))
	}
	return err
}

func (w *watched) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := w.call(ctx, func(ctx context.Context) error { return w.Interface.Update(ctx, r) })
	if err == nil {
		w.transitions.Store(int64(r.LeaderTransitions))
	}
	return err
}

// call makes a call in time, and tells when such calls begin to fail, and when they do not any more. That there is no Lease
// yet, or that another was faster, is no failure.
func (w *watched) call(ctx context.Context, call func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	err := call(limited)
	failed := err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err)
	switch {
	case ctx.Err() != nil || failed == w.failing: // nobody waits for it, or no news
	case failed:
		w.log.Warn("the Lease by which one control decides cannot be read or written; it is tried again", "err", err)
		w.failing = true
	default:
		w.log.Info("the Lease can be read and written again")
		w.failing = false
	}
	return err
}
