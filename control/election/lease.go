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

// watched is a lock that counts changes of the holder. After an outage of the API server, it gives
// the last holder precedence: other controls treat the Lease that they read as just renewed, and
// wait for a whole lease duration. The last leader has the most recent state, and extprocs are
// connected to it.
//
// watched also limits the time of every call; otherwise a lost request would block for a long time
// after the API server is back. It logs an outage once. Only one elector may use it at a time.
type watched struct {
	resourcelock.Interface
	limit       time.Duration // timeout of a call; a renewal needs two calls
	log         *slog.Logger
	failing     bool // calls are failing, which was logged
	transitions atomic.Int64
	blind       bool // the last read failed
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
	return record, strconv.AppendInt(slices.Clip(raw), w.outages, 10), nil // electors compare these bytes with those of the last read
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

// call makes a call with a timeout, and logs when calls begin to fail and when they succeed again.
// A missing Lease, or a conflict, is no failure.
func (w *watched) call(ctx context.Context, call func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	err := call(limited)
	failed := err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err)
	switch {
	case ctx.Err() != nil || failed == w.failing: // cancelled, or nothing new to log
	case failed:
		w.log.Warn("cannot read or write Lease "+LeaseName+", which the leader holds; retrying", "err", err)
		w.failing = true
	default:
		w.log.Info("Lease " + LeaseName + " can be read and written again")
		w.failing = false
	}
	return err
}
