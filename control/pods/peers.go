package pods

import (
	"context"
	"encoding/json"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/headgate/headgate/control/attach/controller"
)

// EnvoysName is the name of the ConfigMap in which controls share the answers of Envoys. Each
// control has a key, the name of its pod.
const EnvoysName = "headgate-envoys"

const (
	// beatInterval is the interval of heartbeats. A control's report expires after beatsMissed
	// missing heartbeats.
	beatInterval = 10 * time.Second
	beatsMissed  = 3
	// shareInterval is the minimum time between two writes of changes.
	shareInterval = 200 * time.Millisecond
)

// Peers shares what Envoys have answered between the controls of a cluster. It is a
// [controller.Peers]. Make one with [Pod.Peers], and run it with [Peers.Run]. In its namespace it
// needs permission to create ConfigMaps, and to list, watch and patch the ConfigMap [EnvoysName].
type Peers struct {
	pod  Pod
	name string // name of this pod

	mu      sync.Mutex // guards the fields below
	own     controller.Seen
	speaks  bool          // own was non-empty once, so it is written even if it is empty now
	due     chan struct{} // capacity 1: full if own has changed
	others  map[string]*peer
	changed chan struct{} // closed when the map others changes
}

var _ controller.Peers = (*Peers)(nil)

// peer is the last report of another control.
type peer struct {
	text  string
	seen  controller.Seen
	since time.Time // when this pod received the report, by its own clock
}

// report is what a control writes about its Envoys. Beat increases with each write.
type report struct {
	Beat int64           `json:"beat"`
	Seen controller.Seen `json:"seen"`
}

// Peers returns the Peers of the control in the pod with this name.
func (p Pod) Peers(name string) *Peers {
	return &Peers{pod: p, name: name, due: make(chan struct{}, 1), others: make(map[string]*peer), changed: make(chan struct{})}
}

// Share implements [controller.Peers].
func (p *Peers) Share(seen controller.Seen) {
	p.mu.Lock()
	p.own = seen
	p.mu.Unlock()
	select {
	case p.due <- struct{}{}:
	default:
	}
}

// Seen implements [controller.Peers].
func (p *Peers) Seen() (map[string]controller.Seen, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]controller.Seen, len(p.others))
	for name, is := range p.others {
		all[name] = is.seen
	}
	return all, p.changed
}

// Run writes this control's report, and reads those of the others, until ctx ends. Soon after that,
// this control's report expires.
func (p *Peers) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(p.pod.Client, 0, informers.WithNamespace(p.pod.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, EnvoysName).String()
		}))
	hear := func(o any) {
		if m, is := o.(*corev1.ConfigMap); is {
			p.watch(m.Data, time.Now())
		}
	}
	if _, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: hear, UpdateFunc: func(_, o any) { hear(o) }, DeleteFunc: func(any) { p.watch(nil, time.Now()) },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	tick := time.NewTicker(beatInterval)
	defer tick.Stop()
	failing := false
	for beat := time.Now().UnixNano(); ; beat++ {
		if err := p.write(ctx, beat); err != nil && ctx.Err() == nil {
			if !failing {
				p.pod.Log.Warn("cannot share the answers of Envoys with other controls; retrying", "configmap", p.pod.Namespace+"/"+
					EnvoysName, "err", err)
			}
			failing = true
		} else {
			failing = false
		}
		rest := time.NewTimer(shareInterval)
		select {
		case <-rest.C:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-p.due:
		case <-tick.C:
			p.forget(time.Now())
		case <-ctx.Done():
			return nil
		}
	}
}

// watch reads the reports of the controls.
func (p *Peers) watch(data map[string]string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	another := false
	for name, text := range data {
		if was := p.others[name]; name == p.name || was != nil && was.text == text {
			continue
		}
		var is report
		if json.Unmarshal([]byte(text), &is) != nil { // written by another version of control
			is = report{}
		}
		was := p.others[name]
		p.others[name] = &peer{text, is.Seen, now}
		another = another || was == nil || !reflect.DeepEqual(was.seen, is.Seen)
	}
	for name := range p.others {
		if _, still := data[name]; !still {
			delete(p.others, name)
			another = true
		}
	}
	if another {
		p.notify()
	}
}

// forget drops the reports of controls without recent heartbeats.
func (p *Peers) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	another := false
	for _, is := range p.others {
		if now.Sub(is.since) > beatsMissed*beatInterval && len(is.seen) > 0 {
			is.seen, another = nil, true
		}
	}
	if another {
		p.notify()
	}
}

// notify reports a change. The caller holds the lock.
func (p *Peers) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// write writes this control's report, and removes those of controls that are gone.
func (p *Peers) write(ctx context.Context, beat int64) error {
	ctx, cancel := context.WithTimeout(ctx, announceInterval)
	defer cancel()
	p.mu.Lock()
	text, err := json.Marshal(report{beat, p.own})
	data := make(map[string]any)
	for name, is := range p.others {
		if len(is.seen) == 0 && time.Since(is.since) > beatsMissed*beatInterval {
			data[name] = nil
		}
	}
	if len(p.own) > 0 || p.speaks { // a control that never had an Envoy writes nothing
		p.speaks = true
		data[p.name] = string(text)
	}
	p.mu.Unlock()
	if err != nil || len(data) == 0 {
		return err
	}
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	all := p.pod.Client.CoreV1().ConfigMaps(p.pod.Namespace)
	_, err = all.Patch(ctx, EnvoysName, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		_, err = all.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.pod.Namespace, Name: EnvoysName}, Data: map[string]string{p.name: string(text)},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // another control created it meanwhile
			_, err = all.Patch(ctx, EnvoysName, types.MergePatchType, patch, metav1.PatchOptions{})
		}
	}
	return err
}
