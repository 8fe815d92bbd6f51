package kube

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// published is a Source without an API server, and what it published when, in a bubble of synctest.
type published struct {
	*Source
	sets []objects.Set
	at   []time.Duration // since it began
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
	pods := p.known[slices.IndexFunc(p.known, func(s shelf) bool { return s.kind.Kind == objects.PodKind })].objects
	name := objects.Name{Namespace: "default", Name: fmt.Sprint("pod", len(pods))}
	pods[name] = objects.Pod{Name: name}
	p.touch()
}

// A World of thousands of objects takes a while to make: where much changes at most 20 are made in a second, and they are as
// many as that, and the last has everything.
func TestWhereMuchChangesSetsAreSpared(t *testing.T) {
	publishing(t, func(t *testing.T, p *published) {
		const changes = 10_000
		for range changes {
			time.Sleep(time.Millisecond)
			p.change()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(p.sets) - 1; n < 150 || n > 200 { // the first is before any change
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

// What kubectl apply writes, one object after the other, is one Set, soon after; and where nothing changes there is none.
func TestChangesThatComeTogetherAreOneSet(t *testing.T) {
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
		time.Sleep(pace + gather)
		synctest.Wait()
		if n := len(p.sets); n != 4 || p.at[3]-p.at[2] != pace+gather || len(p.sets[3].Pods) != 6 {
			t.Errorf("there were %d Sets, at %v", n, p.at)
		}
	})
}
