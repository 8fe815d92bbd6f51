// Package election elects the leader of several controls: the holder of a Lease. Only the leader
// loads models and writes objects.
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

// LeaseName is the name of the leader's Lease, in the namespace of the controls.
const LeaseName = "headgate-control"

// Times of the Lease, as in Kubernetes' own controllers. The holder renews the Lease every
// retryPeriod. If renewals fail for renewDeadline, the holder stops leading. Another control can
// start only later, after leaseDuration.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// releaseTimeout limits how long the end of a process waits for the API server.
	releaseTimeout = 2 * time.Second
)

// Election runs a control's leadership terms. A term starts when this control gets the Lease, and
// ends when another control has it. An expired Lease only pauses the term, because this control
// cannot distinguish the loss of its own connection from an outage of the API server, in which no
// other control leads. The term resumes if no other control got the Lease.
type Election struct {
	Lock resourcelock.Interface
	Log  *slog.Logger
	// LeaderChanged is called with the pod of each new leader, including this one, and with "" if
	// there is none. It may be nil. It is called from several goroutines, and must return quickly.
	LeaderChanged func(pod string)
}

// New returns the election in a namespace; pod is this control, a candidate. It needs the verbs
// create of leases, and get and update of [LeaseName].
func New(client kubernetes.Interface, namespace, pod string, log *slog.Logger) Election {
	return Election{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: LeaseName}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: pod},
		},
		Log: log,
	}
}

// Term runs a leadership term until ctx ends. Pauses sends true when this control may have lost the
// lead, and false when the term resumes. The term must always receive from pauses.
type Term func(ctx context.Context, pauses <-chan bool) error

// event is an event of the Lease.
type event struct {
	// won is not nil if this control has got the Lease; it ends when the Lease is lost.
	won context.Context
	// transitions is how often the Lease had changed its holder when it was won.
	transitions int
	gone        bool
	// other is the name of the new holder if that is another control.
	other string
}

// Run runs terms until ctx ends or a term ends by itself. Then it releases the Lease.
func (e Election) Run(ctx context.Context, term Term) error {
	campaign, retire := context.WithCancel(context.WithoutCancel(ctx))
	happened := make(chan event)
	retired := make(chan struct{})
	tell := func(n event) {
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
				// If true, OnStoppedLeading would wait for the release of the Lease, which takes a
				// long time during an outage.
				ReleaseOnCancel: false,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: func(won context.Context) { tell(event{won: won, transitions: int(lock.transitions.Load())}) },
					OnStoppedLeading: func() { tell(event{gone: true}) },
					OnNewLeader: func(identity string) {
						if e.LeaderChanged != nil {
							e.LeaderChanged(identity)
						}
						if identity != e.Lock.Identity() && identity != "" {
							tell(event{other: identity})
						}
					},
				},
			})
			if err != nil {
				fault <- err
				return
			}
			elector.Run(klog.NewContext(campaign, logr.Discard())) // without log: it would log every attempt
		}
	}()
	defer func() {
		retire()
		<-retired
		e.release(context.WithoutCancel(ctx))
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
			case n.won != nil && n.won.Err() != nil: // the Lease was lost again
			case n.other != "" && held(): // the other has lost the Lease again: events arrive in any order
			case n.won != nil && on != nil && on.transitions == n.transitions:
				e.Log.Info("this control still leads: no other held the Lease meanwhile")
				on.pause(false)
			case n.won != nil:
				if err := on.end(); err != nil {
					return err
				}
				if on = nil; n.won.Err() != nil { // the Lease was lost while the last term ended
					continue
				}
				e.Log.Info("this control leads")
				on = begin(ctx, n.transitions, term)
			case n.gone && on != nil:
				e.Log.Warn("cannot renew Lease " + LeaseName + "; pausing loads and unloads until a control holds it again; retrying")
				on.pause(true)
			case n.other != "":
				e.Log.Info("another control leads", "control", n.other)
				if on != nil {
					on.pause(true) // the term must not write its state any more
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

// release releases the Lease, so that another control can start at once.
func (e Election) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
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

// running is the current term; nil if there is none.
type running struct {
	transitions int
	stop        context.CancelFunc
	pauses      chan bool
	done        chan struct{} // closed at the end of the term
	err         error         // set at the end of the term
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

// over returns a channel that is closed when the term ends by itself.
func (r *running) over() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.done
}

// end cancels a term, waits until it has ended, and returns its error.
func (r *running) end() error {
	if r == nil {
		return nil
	}
	r.stop()
	<-r.done
	return r.err
}
