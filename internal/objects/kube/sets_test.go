package kube

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// published is a Source without an API server, and what it published and when, in a synctest
// bubble.
type published struct {
	*Source
	sets []objects.Set
	at   []time.Duration // since the start
}

func publishing(t *testing.T, script func(t *testing.T, p *published)) {
	synctest.Test(t, func(t *testing.T) {
		p := &published{Source: &Source{changed: make(chan struct{}, 1), known: newShelves(kinds.All())}}
		ctx, cancel := context.WithCancel(t.Context())
		begun, done := time.Now(), make(chan struct{})
		go func() {
			defer close(done)
			p.each(ctx, func(set objects.Set) { p.sets, p.at = append(p.sets, set), append(p.at, time.Since(begun)) })
		}()
		synctest.Wait()
		script(t, p)
		cancel()
		<-done
	})
}

// change adds a pod.
func (p *published) change() {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods := p.known[slices.IndexFunc(p.known, func(s collection) bool { return s.kind.Kind == objects.PodKind })]
	name := objects.Name{Namespace: "default", Name: fmt.Sprint("pod", len(pods.objects))}
	pods.objects[name] = objects.Pod{Name: name}
	p.touch(pods.kind)
}

// Building a World of thousands of objects takes a while: under constant change there are at most,
// and about, 20 Sets per second, and the last one has everything.
func TestSetsAreRateLimited(t *testing.T) {
	publishing(t, func(t *testing.T, p *published) {
		const changes = 10_000
		for range changes {
			time.Sleep(time.Millisecond)
			p.change()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(p.sets) - 1; n < 150 || n > 200 { // the first precedes all changes
			t.Errorf("in 10 s there were %d Sets, want 150 to 200", n)
		}
		for i := 1; i < len(p.at); i++ {
			if p.at[i]-p.at[i-1] < time.Second/20 {
				t.Fatalf("one Set came at %v and the next at %v", p.at[i-1], p.at[i])
			}
		}
		if n := len(p.sets[len(p.sets)-1].Pods); n != changes {
			t.Errorf("the last has %d changes, want %d", n, changes)
		}
	})
}

// The objects of one kubectl apply, written one after the other, are in one Set, soon afterwards;
// without changes there is no Set.
func TestSimultaneousChangesAreOneSet(t *testing.T) {
	publishing(t, func(t *testing.T, p *published) {
		time.Sleep(time.Second)
		for range 4 {
			p.change()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(p.sets) != 2 || len(p.sets[1].Pods) != 4 || p.at[1] != time.Second+gather {
			t.Fatalf("there were %d Sets, at %v", len(p.sets), p.at)
		}
		p.change()
		time.Sleep(gather)
		synctest.Wait()
		p.change() // right after a Set
		time.Sleep(interval + gather)
		synctest.Wait()
		if n := len(p.sets); n != 4 || p.at[3]-p.at[2] != interval+gather || len(p.sets[3].Pods) != 6 {
			t.Errorf("there were %d Sets, at %v", n, p.at)
		}
	})
}

// unmetered ignores all metrics.
type unmetered struct{}

func (unmetered) Refused(int)   {}
func (unmetered) Readable(bool) {}

// The oracle builds each Network from all objects and compares it with the previous one. Some
// objects of our own kinds are invalid and refused.
func TestNetworkChangesWithItsContent(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s := &Source{
		changed: make(chan struct{}, 1), known: newShelves(both), refused: make(map[string]string), meter: unmetered{},
		log: slog.New(slog.DiscardHandler),
	}
	was := s.set()
	anew, kept, version := 0, 0, 0
	for range 3000 {
		collection := s.known[random.IntN(len(s.known))]
		events := s.events(collection)
		o := collection.kind.New()
		if !collection.kind.ClusterScoped {
			o.SetNamespace(fmt.Sprint("space", random.IntN(2)))
		}
		o.SetName(fmt.Sprint("name", random.IntN(2)))
		version++
		o.SetResourceVersion(strconv.Itoa(version))
		o.SetLabels(map[string]string{"one": strconv.Itoa(random.IntN(2))})
		o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: strconv.Itoa(version)}})
		if random.IntN(3) > 0 {
			switch o := o.(type) {
			case *v1alpha1.LLMRoute:
				o.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: "p"}}
			case *v1alpha1.PoolSettings:
				o.Spec.PoolRef.Name = "p"
			case *v1alpha1.Model:
				o.Spec.PoolRef.Name = "p"
			case *pool.InferencePool:
				o.Spec.Selector.MatchLabels = map[string]string{"app": "llama"}
				o.Spec.TargetPorts = []pool.Port{{Number: 8000}}
			}
		}
		collection.kind.Trim(o)
		switch random.IntN(3) {
		case 0:
			events.OnDelete(o)
		case 1:
			events.OnAdd(o, false)
		case 2:
			events.OnUpdate(nil, o)
		}
		is, naive := s.set(), setOf(s.known, nil)
		if !reflect.DeepEqual(is.Network, naive.Network) {
			t.Fatalf("after a change of %s the Network is %+v, want %+v", collection.kind.Kind, is.Network, naive.Network)
		}
		same := reflect.DeepEqual(was.Network, naive.Network)
		if same != (is.Network == was.Network) {
			t.Fatalf("after a change of %s the Network is another, %v, and its content is, %v", collection.kind.Kind,
				is.Network != was.Network, !same)
		}
		if len(is.Pods) != len(naive.Pods) || len(is.Routes) != len(naive.Routes) || !reflect.DeepEqual(is.Models, naive.Models) {
			t.Fatalf("after a change of %s the Set is %+v, want %+v", collection.kind.Kind, is, naive)
		}
		if same {
			kept++
		} else {
			anew++
		}
		was = is
	}
	if n := was.Network; len(n.Routes)+len(n.Pools)+len(n.Settings) < 3 {
		t.Errorf("of our own kinds there is hardly anything: %+v", n)
	}
	if anew < 500 || kept < 500 {
		t.Errorf("the Network was made anew %d times and kept %d times: neither is tried", anew, kept)
	}
	if p := (&Source{known: newShelves(kinds.All())}); p.set().Network != nil {
		t.Error("there is a Network where none of its own kinds is followed")
	}
}
