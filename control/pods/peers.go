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

// EnvoysName is of the ConfigMap in which each control has a key, the name of its pod, with what it has seen of Envoys.
const EnvoysName = "headgate-envoys"

const (
	// beatInterval is how often a control says that it still sees what it said, and beatsMissed how many such times make what it said
	// count for nothing.
	beatInterval = 10 * time.Second
	beatsMissed  = 3
	// shareInterval is between two writes of what changes.
	shareInterval = 200 * time.Millisecond
)

// Peers are the other controls, as a [controller.Peers]. Make them with [Pod.Peers], and run them with [Peers.Run]. They need, in their
// namespace, the verbs create of configmaps, and list, watch and patch of that of the name [EnvoysName].
type Peers struct {
	pod  Pod
	name string // of this pod

	mu      sync.Mutex // guards the following
	own     controller.Seen
	speaks  bool          // own is written, since it was something once
	due     chan struct{} // capacity 1; own is another
	others  map[string]*peer
	changed chan struct{} // closed when others are something else
}

var _ controller.Peers = (*Peers)(nil)

// peer is what another control said last.
type peer struct {
	text  string
	seen  controller.Seen
	since time.Time // when it said so, by the clock of this pod
}

// said is what a control writes. The beat is another one each time.
type said struct {
	Beat int64           `json:"beat"`
	Seen controller.Seen `json:"seen"`
}

// Peers returns the controls beside that in the pod of a name.
func (p Pod) Peers(name string) *Peers {
	return &Peers{pod: p, name: name, due: make(chan struct{}, 1), others: make(map[string]*peer), changed: make(chan struct{})}
}

// Share is that of [controller.Peers].
func (p *Peers) Share(seen controller.Seen) {
	p.mu.Lock()
	p.own = seen
	p.mu.Unlock()
	select {
	case p.due <- struct{}{}:
	default:
	}
}

// Seen is that of [controller.Peers].
func (p *Peers) Seen() (map[string]controller.Seen, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]controller.Seen, len(p.others))
	for name, is := range p.others {
		all[name] = is.seen
	}
	return all, p.changed
}

// Run writes what this control has seen, and reads what the others have, until ctx ends. What it shared counts for nothing soon after.
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
				p.pod.Log.Warn("cannot tell other controls what Envoys say; retrying", "configmap", p.pod.Namespace+"/"+EnvoysName, "err", err)
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

// hear takes up what the controls have written.
func (p *Peers) watch(data map[string]string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	another := false
	for name, text := range data {
		if was := p.others[name]; name == p.name || was != nil && was.text == text {
			continue
		}
		var is said
		if json.Unmarshal([]byte(text), &is) != nil { // of another version of control
			is = said{}
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

// forget lets what a control said count for nothing that has not said it again for long.
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

// say tells of a change. The caller has the lock.
func (p *Peers) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// write writes what this control has seen, and takes away what controls said that are gone.
func (p *Peers) write(ctx context.Context, beat int64) error {
	ctx, cancel := context.WithTimeout(ctx, announceInterval)
	defer cancel()
	p.mu.Lock()
	text, err := json.Marshal(said{beat, p.own})
	data := make(map[string]any)
	for name, is := range p.others {
		if len(is.seen) == 0 && time.Since(is.since) > beatsMissed*beatInterval {
			data[name] = nil
		}
	}
	if len(p.own) > 0 || p.speaks { // who has had no Envoy has nothing to say
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
		if apierrors.IsAlreadyExists(err) { // another control made it meanwhile
			_, err = all.Patch(ctx, EnvoysName, types.MergePatchType, patch, metav1.PatchOptions{})
		}
	}
	return err
}
