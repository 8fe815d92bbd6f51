package election

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// watched is a lock that knows how often it had another holder, and lets the last holder come first after an outage: what
// it read before is as new then, so that others wait as long as for one that they have just heard of. Whoever led knows
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
		w.log.Warn("cannot read or write Lease "+LeaseName+", which the leader holds; retrying", "err", err)
		w.failing = true
	default:
		w.log.Info("Lease " + LeaseName + " can be read and written again")
		w.failing = false
	}
	return err
}
