// Package election lets one control of several lead: the one that holds a Lease. Only the leader loads models and writes objects.
package election

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// LeaseName is of the Lease that the leader holds, in the namespace of the controls.
const LeaseName = "headgate-control"

// Times of the Lease, those of Kubernetes' own controllers. Its holder renews it every retryPeriod; one that could not for
// renewDeadline stops leading, before leaseDuration lets another begin.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// giveBackTimeout bounds what the end of a process waits for the API server.
	giveBackTimeout = 2 * time.Second
)

// Election is how a control comes to lead, for a term: from when it gets the Lease until another holder is seen. A Lease that
// ran out ends no term: whoever cannot reach the API server cannot tell an outage, during which nobody else leads either, from
// being cut off. The term is paused then, and goes on if the Lease was never another's.
type Election struct {
	Lock resourcelock.Interface
	Log  *slog.Logger
	// Heard, if it is not nil, is told the pod of each control that is found to lead, this one too, and the empty name where none does.
	// It is called at any time, by several goroutines, and must be quick.
	Heard func(pod string)
}

// New returns the election of the controls of a namespace, in which a pod of it is a candidate. It needs the verbs create of
// leases, and get and update of the one of [LeaseName].
func New(client kubernetes.Interface, namespace, pod string, log *slog.Logger) Election {
	return Election{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: LeaseName}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: pod},
		},
		Log: log,
	}
}

// Term is what a control does while it leads, until ctx ends. Pauses says when nobody knows who leads, and when the term goes on:
// whoever runs it hears of it at any time.
type Term func(ctx context.Context, pauses <-chan bool) error

// news is what became of the Lease.
type news struct {
	// won is ended when the Lease is gone again; nil in other news.
	won context.Context
	// transitions is how often the Lease had had another holder then.
	transitions int
	gone        bool
	// other has the Lease.
	other string
}

// Run holds terms until ctx ends, or a term does. It gives the Lease back at the end, when no term goes on any more.
func (e Election) Run(ctx context.Context, term Term) error {
	campaign, retire := context.WithCancel(context.WithoutCancel(ctx))
	happened := make(chan news)
	retired := make(chan struct{})
	tell := func(n news) {
		select {
		case happened <- n:
		case <-campaign.Done():
		}
	}
	lock := &watched{Interface: e.Lock, limit: renewDeadline / 2, log: e.Log}
	fault := make(chan error, 1)
	go func() {
		defer close(retired)
		for campaign.Err() == nil {
			elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
				Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
				// The callback would have to wait for the Lease to be given back, which takes long where nobody answers.
				ReleaseOnCancel: false,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: func(won context.Context) { tell(news{won: won, transitions: int(lock.transitions.Load())}) },
					OnStoppedLeading: func() { tell(news{gone: true}) },
					OnNewLeader: func(identity string) {
						if e.Heard != nil {
							e.Heard(identity)
						}
						if identity != e.Lock.Identity() && identity != "" {
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
			case n.won != nil && n.won.Err() != nil: // and gone
			case n.other != "" && held(): // and gone: each is told of by a goroutine of its own, in any order
			case n.won != nil && on != nil && on.transitions == n.transitions:
				e.Log.Info("this control still leads: no other held the Lease meanwhile")
				on.pause(false)
			case n.won != nil:
				if err := on.end(); err != nil {
					return err
				}
				if on = nil; n.won.Err() != nil { // it was gone while the term before ended
					continue
				}
				e.Log.Info("this control leads")
				on = begin(ctx, n.transitions, term)
			case n.gone && on != nil:
				e.Log.Warn("cannot renew Lease " + LeaseName + "; loading and unloading nothing until a control holds it again; retrying")
				on.pause(true)
			case n.other != "":
				e.Log.Info("another control leads", "control", n.other)
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
			return fmt.Errorf("elect the leader: %w", err)
		case <-ctx.Done():
			return on.end()
		}
	}
}

// giveBack lets another control begin at once.
func (e Election) giveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, giveBackTimeout)
	defer cancel()
	record, _, err := e.Lock.Get(ctx)
	if err != nil || record.HolderIdentity != e.Lock.Identity() {
		return
	}
	record.HolderIdentity, record.LeaseDurationSeconds = "", 1
	if err := e.Lock.Update(ctx, *record); err != nil {
		e.Log.Warn("cannot release the Lease; it expires by itself", "lease", LeaseName, "in", leaseDuration, "err", err)
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

func begin(ctx context.Context, transitions int, term Term) *running {
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
