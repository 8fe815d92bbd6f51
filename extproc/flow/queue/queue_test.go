package queue_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/internal/objects"
)

func key(id string) objects.ModelKey {
	return objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "pool"}, ID: id}
}

var start = time.Unix(1e9, 0)

func join(t *testing.T, q *queue.Queue[string], name, model string) *queue.Place[string] {
	t.Helper()
	p, err := q.Join(name, key(model), 1, start)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func names(places ...*queue.Place[string]) []string {
	var all []string
	for _, p := range places {
		if p != nil {
			all = append(all, p.Waiter)
		}
	}
	return all
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestWaitingRequestsContinueInOrder(t *testing.T) {
	q := queue.New[string](10, 10)
	a, b, c := join(t, q, "a", "m"), join(t, q, "b", "m"), join(t, q, "c", "m")
	other := join(t, q, "other", "n")
	expect(t, "nothing is ready", names(q.Show(key("m"), queue.Waits)...))
	expect(t, "it is ready", names(q.Show(key("m"), queue.Ready)...), "a")
	expect(t, "it is still ready", names(q.Show(key("m"), queue.Ready)...))
	expect(t, "a has continued", names(q.Leave(a)), "b")
	expect(t, "b has continued", names(q.Leave(b)), "c")
	expect(t, "c has continued", names(q.Leave(c)))
	expect(t, "another model", names(q.Leave(other)))
	if q.Bytes() != 0 || len(q.WaitingModels()) != 0 {
		t.Errorf("%d bytes and %v are left", q.Bytes(), q.WaitingModels())
	}
}

func TestDeadRequestDoesNotStopTheOthers(t *testing.T) {
	q := queue.New[string](10, 10)
	a, b, c, d := join(t, q, "a", "m"), join(t, q, "b", "m"), join(t, q, "c", "m"), join(t, q, "d", "m")
	expect(t, "ready", names(q.Show(key("m"), queue.Ready)...), "a")
	expect(t, "c leaves from the middle", names(q.Leave(c)))
	expect(t, "a dies with its turn", names(q.Leave(a)), "b")
	expect(t, "a again", names(q.Leave(a)))
	expect(t, "b dies too", names(q.Leave(b)), "d")
	_ = d
}

func TestRequestWithoutACopyStaysFirst(t *testing.T) {
	q := queue.New[string](10, 10)
	a, b := join(t, q, "a", "m"), join(t, q, "b", "m")
	expect(t, "ready", names(q.Show(key("m"), queue.Ready)...), "a")
	q.Back(a)
	expect(t, "the copy is gone", names(q.Show(key("m"), queue.Waits)...))
	expect(t, "b leaves", names(q.Leave(b)))
	expect(t, "c comes", names(join(t, q, "c", "m")), "c")
	expect(t, "ready again", names(q.Show(key("m"), queue.Ready)...), "a")
}

// A failed load does not end a request that was called: it may have found a copy already.
func TestFailureEndsAllWaitsButTheCalledOne(t *testing.T) {
	q := queue.New[string](10, 10)
	a := join(t, q, "a", "m")
	join(t, q, "b", "m")
	join(t, q, "c", "m")
	expect(t, "ready", names(q.Show(key("m"), queue.Ready)...), "a")
	expect(t, "failed", names(q.Show(key("m"), queue.Failed)...), "b", "c")
	q.Back(a)
	expect(t, "a found none", names(q.Show(key("m"), queue.Failed)...), "a")
	if q.Bytes() != 0 || q.Has(key("m")) {
		t.Errorf("%d bytes are left", q.Bytes())
	}
}

func TestQueueIsBounded(t *testing.T) {
	q := queue.New[string](2, 10)
	join(t, q, "a", "m")
	b := join(t, q, "b", "m")
	if _, err := q.Join("c", key("m"), 1, start); !errors.Is(err, queue.ErrFull) {
		t.Errorf("a third request for the model: %v", err)
	}
	if _, err := q.Join("d", key("n"), 9, start); !errors.Is(err, queue.ErrFull) {
		t.Errorf("an eleventh byte: %v", err)
	}
	if _, err := q.Join("e", key("n"), 8, start); err != nil {
		t.Errorf("a tenth byte: %v", err)
	}
	q.Leave(b)
	join(t, q, "f", "m")
}

func TestWantedSince(t *testing.T) {
	q := queue.New[string](10, 100)
	for i, model := range []string{"m", "l", "m"} {
		if _, err := q.Join("x", key(model), 1, start.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	want := []queue.WaitingModel{{Key: key("l"), Requests: 1, Since: start.Add(time.Second)}, {Key: key("m"), Requests: 2, Since: start}}
	if got := q.WaitingModels(); !slices.Equal(got, want) {
		t.Errorf("wanted are %+v", got)
	}
}

// plain is a simple queue for one model, the oracle of Queue.
type plain struct {
	names  []string
	called bool // the turn of the first request has come
	open   bool
}

func (p *plain) call() []string {
	if !p.open || p.called || len(p.names) == 0 {
		return nil
	}
	p.called = true
	return p.names[:1]
}

func (p *plain) leave(name string) []string {
	i := slices.Index(p.names, name)
	if i < 0 {
		return nil
	}
	if i == 0 {
		p.called = false
	}
	if p.names = slices.Delete(slices.Clone(p.names), i, i+1); len(p.names) == 0 {
		p.open = false
	}
	return slices.Clone(p.call())
}

func TestQueueMatchesTheNaiveOne(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 7))
		q, p := queue.New[string](8, 100), &plain{}
		places := map[string]*queue.Place[string]{}
		for step := range 200 {
			var got, want []string
			var did string
			switch name := strconv.Itoa(random.IntN(step + 1)); random.IntN(6) {
			case 0, 1:
				name = strconv.Itoa(step)
				did = "join " + name
				place, err := q.Join(name, key("m"), 1, start)
				if (err == nil) != (len(p.names) < 8) {
					t.Fatalf("seed %d, step %d: %v with %d waiting", seed, step, err, len(p.names))
				}
				if err == nil {
					places[name] = place
					p.names = append(p.names, name)
				}
			case 2:
				did = "leave " + name
				if places[name] != nil {
					got, want = names(q.Leave(places[name])), p.leave(name)
				}
			case 3:
				did = "the first leaves"
				if len(p.names) > 0 {
					name = p.names[0]
					got, want = names(q.Leave(places[name])), p.leave(name)
				}
			case 4:
				did = "ready"
				got = names(q.Show(key("m"), queue.Ready)...)
				p.open = len(p.names) > 0
				want = slices.Clone(p.call())
			case 5:
				did = "back and waits"
				if p.called {
					q.Back(places[p.names[0]])
					p.called = false
				}
				got = names(q.Show(key("m"), queue.Waits)...)
				p.open = false
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d, %s: %v are called, want %v", seed, step, did, got, want)
			}
		}
	}
}

// Named finds the models with a given name in every pool, and no models with other names.
func TestNamedFindsModelsInEachPool(t *testing.T) {
	q := queue.New[string](10, 10)
	there := objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "another"}, ID: "m"}
	for _, k := range []objects.ModelKey{key("m"), key("n"), there} {
		if _, err := q.Join("a", k, 0, start); err != nil {
			t.Fatal(err)
		}
	}
	if got := q.Named("m"); !slices.Equal(got, []objects.ModelKey{there, key("m")}) {
		t.Errorf("for m there are %v", got)
	}
	if got := q.Named("o"); len(got) > 0 {
		t.Errorf("for o there are %v", got)
	}
}
