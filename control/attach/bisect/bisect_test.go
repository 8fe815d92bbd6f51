package bisect_test

import (
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/control/attach/bisect"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/golden"
)

// world is a Gateway with its Envoys. A route configuration is a text with one word per route. A
// word is the content of the route: its name, a version, and ":500" if its requests get 500.
type world struct {
	t      *testing.T
	q      *bisect.Bisection
	now    time.Time
	rows   map[string][]string // contents of routes, by route configuration
	bodies map[string]string   // offered texts, by route configuration
	frozen map[string][]string // rows at the start of the search
	search int
	trial  bisect.Trial
	trying bool
	trials int
	envoys map[uint64]*box
	log    *strings.Builder // nil: no log
}

// box is a model of an Envoy.
type box struct {
	refuses map[string]bool   // words of routes that it rejects
	has     map[string]string // accepted texts, by route configuration
	told    map[string]string // received versions, by route configuration
}

func newWorld(t *testing.T) *world {
	return &world{t: t, q: bisect.New("seed"), now: time.Unix(1e9, 0), rows: make(map[string][]string), envoys: make(map[uint64]*box)}
}

func nameOf(content string) objects.Object {
	name, _, _ := strings.Cut(content, "=")
	return objects.Object{Kind: objects.HTTPRouteKind, Name: objects.Name{Namespace: "ns", Name: name}}
}

// body returns the text of a route configuration without the routes that are left out.
func body(row []string, out map[objects.Object]plan.LeftOut) string {
	var words []string
	for _, content := range row {
		left, is := out[nameOf(content)]
		switch {
		case !is:
			words = append(words, content)
		case !left.Dropped:
			words = append(words, content+":500")
		}
	}
	return strings.Join(words, " ")
}

// out returns the routes that are left out now.
func (w *world) out() map[objects.Object]plan.LeftOut {
	contents := make(map[objects.Object]string)
	for _, row := range w.rows {
		for _, content := range row {
			contents[nameOf(content)] = content
		}
	}
	return w.q.Plan(contents)
}

// plan offers the current routes.
func (w *world) plan() {
	out := w.out()
	w.bodies = make(map[string]string)
	offers := make(map[bisect.Resource]bisect.Offer)
	for name, row := range w.rows {
		w.bodies[name] = body(row, out)
		var routes []objects.Object
		for word := range strings.FieldsSeq(w.bodies[name]) {
			routes = append(routes, nameOf(word))
		}
		offers[bisect.Resource{Type: order.Routes, Name: name}] = bisect.Offer{Version: w.version(name), Routes: func() []objects.Object {
			return routes
		}}
	}
	w.q.Offer(offers)
}

func (w *world) version(name string) string { return "v " + w.bodies[name] }

// judge processes the answers so far, as package controller does after each answer.
func (w *world) judge() {
	w.next()
	if w.q.Stale() {
		w.plan()
		w.next()
	}
}

func (w *world) next() {
	was := w.trial.Version
	if w.trial, w.trying = w.q.Next(w.now); !w.trying || w.trial.Version == was {
		return
	}
	w.trials++
	if w.trial.Search != w.search {
		w.search, w.frozen = w.trial.Search, maps.Clone(w.rows)
	}
	w.logf("tries %s: %s\n", w.trial.Routes, w.tried())
}

func (w *world) tried() string { return body(w.frozen[w.trial.Routes], w.trial.Out) }

func (w *world) logf(format string, args ...any) {
	if w.log != nil {
		fmt.Fprintf(w.log, format, args...)
	}
}

// behind returns the resources that an Envoy has not received yet.
func (w *world) behind(b *box) map[string]string {
	all := make(map[string]string)
	for name := range w.bodies {
		if b.told[name] != w.version(name) {
			all[name] = w.version(name)
		}
	}
	if w.trying && b.told["trial"] != w.trial.Version {
		all["trial"] = w.trial.Version
	}
	return all
}

// deliver sends an Envoy all resources that it has not received, in one response, and records its
// answer.
func (w *world) deliver(number uint64) {
	b := w.envoys[number]
	versions := w.behind(b)
	a := order.Answer{Type: order.Routes, Names: slices.Sorted(maps.Keys(versions)), Versions: versions}
	for _, name := range a.Names {
		b.told[name] = versions[name]
		body := w.bodies[name]
		if name == "trial" {
			body = w.tried()
		}
		if why := b.why(body); why != "" {
			a.Refused = why
		} else if name != "trial" {
			b.has[name] = body
		}
	}
	if a.Refused != "" {
		w.logf("envoy %d refuses %v: %s\n", number, a.Names, a.Refused)
	}
	w.q.Answered(number, a)
	w.judge()
}

func (b *box) why(body string) string {
	for word := range strings.FieldsSeq(body) {
		if b.refuses[word] {
			return "I do not like " + word
		}
	}
	if b.refuses["everything"] {
		return "I do not like anything"
	}
	return ""
}

// settle calls deliver for all Envoys until nothing is left to send.
func (w *world) settle() {
	w.judge()
	for rounds := 0; ; rounds++ {
		idle := true
		for _, number := range slices.Sorted(maps.Keys(w.envoys)) {
			if len(w.behind(w.envoys[number])) > 0 {
				idle = false
				w.deliver(number)
			}
		}
		if idle {
			return
		}
		if rounds > 100_000 {
			w.t.Fatal("the search does not end")
		}
	}
}

func (w *world) join(number uint64, refuses ...string) {
	b := &box{refuses: make(map[string]bool), has: make(map[string]string), told: make(map[string]string)}
	for _, word := range refuses {
		b.refuses[word] = true
	}
	w.envoys[number] = b
}

func (w *world) leave(number uint64) {
	delete(w.envoys, number)
	w.q.Disconnected(number)
}

// Each line of a block is an event, and all blocks of a file share one world:
//
//	have port-80 a=1 b=1          a route configuration now has these routes, with versions
//	envoy 1 refuses b=1 a=1:500   Envoy 1 connects; it rejects these routes, or "everything"
//	gone 1                        Envoy 1 disconnects
//	hear 1                        Envoy 1 receives its resources and the trial once, and answers
//	settle                        all Envoys do that until nothing is left to send
//	wait                          the timeout of a trial passes
//	show                          the state is printed
//
// The output is the trials and the rejected routes, then the routes that are left out and what each
// Envoy has.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		w := newWorld(t)
		return func(input string) string {
			w.log = new(strings.Builder)
			for line := range strings.SplitSeq(strings.TrimSpace(input), "\n") {
				verb, rest, _ := strings.Cut(line, " ")
				words := strings.Fields(rest)
				var number uint64
				if len(words) > 0 {
					_, _ = fmt.Sscan(words[0], &number)
				}
				switch verb {
				case "have":
					if w.rows[words[0]] = words[1:]; len(words) == 1 {
						delete(w.rows, words[0])
					}
					w.plan()
					w.judge()
				case "envoy":
					w.join(number, words[min(2, len(words)):]...)
				case "gone":
					w.leave(number)
					w.judge()
				case "hear":
					w.deliver(number)
				case "settle":
					w.settle()
				case "show":
					w.logf("%s", w.q)
				case "wait":
					w.now = w.now.Add(time.Minute)
					w.judge()
				default:
					t.Fatalf("unknown line: %s", line)
				}
			}
			out := w.out()
			for _, of := range slices.SortedFunc(maps.Keys(out), func(x, y objects.Object) int { return x.Name.Compare(y.Name) }) {
				w.logf("out: %s, dropped %v: %s\n", of.Name.Name, out[of].Dropped, out[of].Message)
			}
			for _, f := range w.q.Faults() {
				w.logf("fault: %s: %s\n", f.Name, f.Message)
			}
			for _, number := range slices.Sorted(maps.Keys(w.envoys)) {
				has := w.envoys[number].has
				for _, name := range slices.Sorted(maps.Keys(has)) {
					w.logf("envoy %d has %s: %s\n", number, name, has[name])
				}
			}
			return w.log.String()
		}
	})
}

// Whatever changes during a search, only routes that an Envoy rejected are left out. In the end all
// rejected routes are left out, no NACK lacks a cause, and the error of each route is the one that
// names it.
func TestOnlyRejectedRoutesAreLeftOut(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 11))
		w := newWorld(t)
		ever := make(map[string]bool) // contents that were offered at any time and that an Envoy rejects
		names := 1 + r.IntN(24)
		change := func() {
			for i := range names {
				content := fmt.Sprintf("r%d=%d", i, r.IntN(3))
				for _, name := range []string{"p", "q"} {
					at := slices.IndexFunc(w.rows[name], func(c string) bool { return nameOf(c) == nameOf(content) })
					switch {
					case at >= 0 && r.IntN(3) == 0:
						w.rows[name] = slices.Concat(w.rows[name][:at], []string{content}, w.rows[name][at+1:])
					case at < 0 && r.IntN(2) == 0:
						w.rows[name] = slices.Concat(w.rows[name], []string{content})
					}
				}
			}
			w.rows["q"] = slices.Clone(w.rows["q"])
			for i, content := range w.rows["q"] { // a route has the same content in all configurations
				if at := slices.IndexFunc(w.rows["p"], func(c string) bool { return nameOf(c) == nameOf(content) }); at >= 0 {
					w.rows["q"][i] = w.rows["p"][at]
				}
			}
			w.plan()
		}
		next := uint64(0)
		join := func() {
			next++
			var refuses []string
			for range r.IntN(4) {
				word := fmt.Sprintf("r%d=%d", r.IntN(names), r.IntN(3))
				refuses = append(refuses, word)
				if r.IntN(2) == 0 {
					refuses = append(refuses, word+":500")
				}
			}
			for _, word := range refuses {
				ever[word] = true
			}
			w.join(next, refuses...)
		}
		check := func() {
			t.Helper()
			for of, left := range w.out() {
				content := strings.TrimSuffix(strings.TrimPrefix(left.Message, "I do not like "), ":500")
				if !ever[content] || nameOf(content) != of {
					t.Fatalf("seed %d: %s is left out: %s\n%s", seed, of, left.Message, w.q)
				}
				if left.Dropped && !ever[content+":500"] {
					t.Fatalf("seed %d: %s is dropped, but its matches are valid\n%s", seed, of, w.q)
				}
			}
		}
		change()
		join()
		for range r.IntN(120) {
			switch n := r.IntN(20); {
			case n == 0:
				change()
			case n == 1 && len(w.envoys) < 3:
				join()
			case n == 2 && len(w.envoys) > 1:
				w.leave(slices.Min(slices.Collect(maps.Keys(w.envoys))))
			default:
				number := slices.Sorted(maps.Keys(w.envoys))[r.IntN(len(w.envoys))]
				if len(w.behind(w.envoys[number])) > 0 {
					w.deliver(number)
				}
			}
			w.judge()
			check()
		}
		w.trials = 0
		w.settle()
		check()
		bad := 0
		for number, b := range w.envoys {
			for name, want := range w.bodies {
				if got, there := b.has[name]; !there || got != want {
					t.Fatalf("seed %d: envoy %d has %s %q, want %q\n%s", seed, number, name, got, want, w.q)
				}
			}
			bad += len(b.refuses) + 1
		}
		if limit := 2 * bad * (2*bits.Len(uint(names)) + 4); w.trials > limit {
			t.Errorf("seed %d: %d trials, want at most %d", seed, w.trials, limit)
		}
	}
}

// One rejected route among a thousand takes few trials if an Envoy accepted all other routes
// before.
func TestOneRejectedOfAThousandIsFoundFast(t *testing.T) {
	for _, at := range []int{0, 1, 499, 500, 998, 999} {
		for _, matches := range []bool{false, true} {
			w := newWorld(t)
			for i := range 1000 {
				w.rows["p"] = append(w.rows["p"], fmt.Sprintf("r%d=1", i))
			}
			bad := fmt.Sprintf("r%d=2", at)
			refuses := []string{bad}
			if matches {
				refuses = append(refuses, bad+":500")
			}
			w.join(1, refuses...)
			w.plan()
			w.settle()
			for _, known := range []bool{true, false} {
				if known {
					w.rows["p"] = slices.Clone(w.rows["p"])
					w.rows["p"][at] = bad
				} else {
					w.q, w.search = bisect.New("another control"), 0
				}
				w.trials = 0
				w.plan()
				w.settle()
				out := w.out()
				if left, is := out[nameOf(bad)]; len(out) != 1 || !is || left.Dropped != matches || left.Message != "I do not like "+bad {
					t.Errorf("of a thousand routes, number %d is rejected, and these are left out: %v", at, out)
				}
				limit := 2
				if !known {
					limit = 21
				}
				if w.trials > limit {
					t.Errorf("of a thousand routes, number %d is rejected (known %v): %d trials", at, known, w.trials)
				}
				for word := range strings.FieldsSeq(w.envoys[1].has["p"]) {
					if word != "" && word != bad+":500" && strings.Contains(word, ":500") {
						t.Errorf("the Envoy has %s", word)
					}
				}
			}
		}
	}
}

// A thousand routes that are all rejected take about two trials each.
func TestThousandRejectedRoutesAreFound(t *testing.T) {
	w := newWorld(t)
	var refuses []string
	for i := range 1000 {
		w.rows["p"] = append(w.rows["p"], fmt.Sprintf("r%d=1", i))
		refuses = append(refuses, fmt.Sprintf("r%d=1", i))
	}
	w.join(1, refuses...)
	w.plan()
	w.settle()
	if out := w.out(); len(out) != 1000 || w.trials > 2020 {
		t.Errorf("%d routes are left out after %d trials", len(out), w.trials)
	}
}

// For clusters and listeners, Envoy's error names the rejected resources, and Envoy accepts the
// rest.
func TestFaultsNameTheRejectedResources(t *testing.T) {
	q := bisect.New("seed")
	offers := make(map[bisect.Resource]bisect.Offer)
	versions := make(map[string]string)
	for _, name := range []string{"port-80", "port-8080", "port-443"} {
		offers[bisect.Resource{Type: order.Listeners, Name: name}] = bisect.Offer{Version: "1"}
		versions[name] = "1"
	}
	offers[bisect.Resource{Type: order.Secrets, Name: "secret/ns/a"}] = bisect.Offer{Version: "1"}
	expect := func(what string, want ...bisect.Fault) {
		t.Helper()
		if trial, some := q.Next(time.Unix(1e9, 0)); some {
			t.Errorf("%s: there is a trial of %v", what, trial)
		}
		if got := q.Faults(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	hear := func(envoy uint64, of, refused string, versions map[string]string) {
		q.Answered(envoy, order.Answer{Type: of, Names: slices.Sorted(maps.Keys(versions)), Versions: versions, Refused: refused})
	}
	q.Plan(nil)
	q.Offer(offers)
	const words = "Error adding/updating listener(s) port-8080: no such address"
	listener := bisect.Fault{Resource: bisect.Resource{Type: order.Listeners, Name: "port-8080"}, Message: words}
	secret := bisect.Fault{Resource: bisect.Resource{Type: order.Secrets, Name: "secret/ns/a"}, Message: "KEY_VALUES_MISMATCH"}
	hear(1, order.Listeners, words, versions)
	expect("it names one of three", listener)
	hear(1, order.Secrets, secret.Message, map[string]string{"secret/ns/a": "1"})
	hear(2, order.Secrets, secret.Message, map[string]string{"secret/ns/a": "1"})
	expect("it names none, and two say the same", listener, secret)
	hear(1, order.Listeners, "", map[string]string{"port-8080": "1"})
	expect("it has taken it", secret)
	q.Disconnected(1)
	expect("one of the two has left", secret)
	offers = maps.Clone(offers)
	offers[secret.Resource] = bisect.Offer{Version: "2"}
	q.Offer(offers)
	expect("it is another")
}

// A late answer to an old version does not apply to the current version.
func TestLateAnswerAppliesToItsOwnOffer(t *testing.T) {
	q := bisect.New("seed")
	p := bisect.Resource{Type: order.Routes, Name: "p"}
	offer := func(version string, row ...string) {
		contents := make(map[objects.Object]string)
		var routes []objects.Object
		for _, content := range row {
			contents[nameOf(content)] = content
			routes = append(routes, nameOf(content))
		}
		q.Plan(contents)
		q.Offer(map[bisect.Resource]bisect.Offer{p: {Version: version, Routes: func() []objects.Object { return routes }}})
	}
	hear := func(version, refused string) {
		q.Answered(1, order.Answer{Type: order.Routes, Names: []string{"p"}, Versions: map[string]string{"p": version}, Refused: refused})
	}
	row := []string{"a=1", "b=1", "c=1", "d=1", "e=1"}
	offer("1", row...)
	hear("1", "")
	offer("2", "a=1", "b=1", "c=1", "d=1", "e=2")
	row = []string{"a=2", "b=1", "c=1", "d=1", "e=2"}
	offer("3", row...)
	hear("2", "")
	hear("3", "no")
	trial, _ := q.Next(time.Unix(1e9, 0))
	if got := body(row, trial.Out); got != "b=1 c=1 d=1" {
		t.Errorf("the next trial is %q, want b=1 c=1 d=1, which is not yet known to be accepted", got)
	}
}
