package events

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

var start = time.Unix(1e9, 0)

func routeNamed(name string) objects.Object {
	return objects.Object{Kind: v1alpha1.LLMRouteKind, Name: objects.Name{Namespace: "default", Name: name}}
}

// conditions parses conditions such as "Ready False NoEndpoints", separated by semicolons.
func conditions(t testing.TB, text string) (all []Condition) {
	t.Helper()
	for words := range strings.SplitSeq(text, "; ") {
		if words == "" {
			continue
		}
		var c metav1.Condition
		if _, err := fmt.Sscan(words, &c.Type, &c.Status, &c.Reason); err != nil {
			t.Fatal(words, err)
		}
		c.Message = strings.ToLower(c.Reason)
		all = append(all, Condition{"", c})
	}
	return all
}

// take returns all Events that may be written at a time.
func take(a *Aggregator, at time.Time) (all []Event) {
	for e, due := a.Next(at); due; e, due = a.Next(at) {
		a.Written(e)
		all = append(all, e)
	}
	return all
}

// lines formats Events as "Type Reason ×count: note".
func lines(all []Event) (lines []string) {
	for _, e := range all {
		lines = append(lines, fmt.Sprintf("%s %s ×%d: %s", e.Type, e.Reason, e.Count, e.Note))
	}
	return lines
}

// An Event is due for each change for the worse and back, and for no other change.
func TestChangesForTheWorseAndBackAreReported(t *testing.T) {
	for name, c := range map[string]struct {
		writes []string // conditions of an object, one after another
		want   []string
	}{
		"created well":   {[]string{"", "Accepted True Accepted; Ready True Answers"}, nil},
		"created broken": {[]string{"", "Ready False NoEndpoints"}, []string{"Warning NoEndpoints ×1: Ready is False: noendpoints"}},
		"worse and back": {
			[]string{"Ready True Answers", "Ready False NoEndpoints", "Ready True Answers"},
			[]string{"Warning NoEndpoints ×1: Ready is False: noendpoints", "Normal Answers ×1: Ready is True: answers"},
		},
		"broken before this control": {
			[]string{"Ready False NoEndpoints", "Ready True Answers"}, []string{"Normal Answers ×1: Ready is True: answers"},
		},
		"broken in another way": {
			[]string{"Ready True Answers", "Ready False NoEndpoints", "Ready False NotFound"},
			[]string{"Warning NoEndpoints ×1: Ready is False: noendpoints", "Warning NotFound ×1: Ready is False: notfound"},
		},
		"unknown is not worse": {[]string{"Ready True Answers", "Ready Unknown NotObserved", "Ready True Answers"}, nil},
		"unknown is not back": {
			[]string{"Ready False NoEndpoints", "Ready Unknown NotObserved", "Ready True Answers"},
			[]string{"Normal Answers ×1: Ready is True: answers"},
		},
		"a start is not worse":      {[]string{"", "Programmed False Pending", "Programmed True Programmed"}, nil},
		"good in another way":       {[]string{"Ready True Loaded", "Ready True Loadable"}, nil},
		"a negative condition":      {[]string{"", "Conflicted True HostnameConflict"}, []string{"Warning HostnameConflict ×1: Conflicted is True: hostnameconflict"}},
		"a negative condition goes": {[]string{"Conflicted True X", ""}, []string{"Normal Resolved ×1: Conflicted is resolved"}},
		"a condition goes":          {[]string{"Ready False NoEndpoints", ""}, nil},
		"two conditions": {
			[]string{"", "Accepted False NoMatchingParent; Ready False NoMatchingParent"},
			[]string{
				"Warning NoMatchingParent ×1: Accepted is False: nomatchingparent",
				"Warning NoMatchingParent ×1: Ready is False: nomatchingparent",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, now := New(), start
			var got []Event
			for i := range c.writes[1:] {
				now = now.Add(time.Second)
				a.Observe(now, routeNamed("r"), "u", conditions(t, c.writes[i]), conditions(t, c.writes[i+1]))
				got = append(got, take(a, now)...)
			}
			if got := lines(got); !slices.Equal(got, c.want) {
				t.Errorf("the Events are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// An object with many conditions gets an Event for each of them in the end, although it gets only
// one each minute after the first ones.
func TestEventsThatWaitAreNotForgotten(t *testing.T) {
	a, now := New(), start
	var words []string
	for i := range 25 {
		words = append(words, fmt.Sprint("Ready", i, " False NoEndpoints"))
	}
	a.Observe(now, routeNamed("r"), "u", nil, conditions(t, strings.Join(words, "; ")))
	written := len(take(a, now))
	for range 30 {
		now = now.Add(time.Minute)
		written += len(take(a, now))
	}
	if written != len(words) || a.Len() != 0 {
		t.Errorf("%d of %d Events are written, %d conditions are kept", written, len(words), a.Len())
	}
}

// A change that is undone before its Event could be written is not reported. Repeated changes
// increase the count of the first Event.
func TestRepeatedChangesAreOneEvent(t *testing.T) {
	a, now, r := New(), start, routeNamed("r")
	up, down := conditions(t, "Ready True Answers"), conditions(t, "Ready False NoEndpoints")
	a.Observe(now, r, "u", up, down)
	a.Observe(now, r, "u", down, up)
	if all := take(a, now); len(all) != 0 {
		t.Errorf("the Events are %v", lines(all))
	}
	names := make(map[string]int32)
	for range 4 {
		now = now.Add(time.Second)
		a.Observe(now, r, "u", up, down)
		all := take(a, now)
		now = now.Add(time.Second)
		a.Observe(now, r, "u", down, up)
		for _, e := range append(all, take(a, now)...) {
			if e.Again != (names[e.Name] > 0) || e.Count <= names[e.Name] {
				t.Errorf("after %v comes %+v", names, e)
			}
			names[e.Name] = e.Count
		}
	}
	if len(names) != 2 {
		t.Errorf("the Events are %v, want two", names)
	}
	// Much later it is a new Event.
	now = now.Add(seriesWindow)
	a.Observe(now, r, "u", up, down)
	if all := take(a, now); len(all) != 1 || all[0].Again || names[all[0].Name] != 0 {
		t.Errorf("the Events are %+v", all)
	}
}

// An Event that was not written is due again.
func TestFailedEventIsDueAgain(t *testing.T) {
	a := New()
	a.Observe(start, routeNamed("r"), "u", nil, conditions(t, "Ready False NoEndpoints"))
	for range 3 {
		if e, due := a.Next(start); !due || e.Again {
			t.Fatalf("%+v, %v", e, due)
		}
	}
	if all := take(a, start); len(all) != 1 {
		t.Errorf("the Events are %v", lines(all))
	}
}

// A thousand objects that change each second get few Events, and so does each of them. When the
// objects are deleted, nothing is left of them.
func TestFlappingObjectsMakeNoStorm(t *testing.T) {
	a, now := New(), start
	up, down := conditions(t, "Ready True Answers"), conditions(t, "Ready False NoEndpoints")
	const seconds, n = 60, 1000
	written, most := make(map[objects.Object]int), 0
	for second := range seconds {
		now = now.Add(time.Second)
		for i := range n {
			if second%2 == 0 {
				a.Observe(now, routeNamed(strconv.Itoa(i)), "u", up, down)
			} else {
				a.Observe(now, routeNamed(strconv.Itoa(i)), "u", down, up)
			}
		}
		all := take(a, now)
		most = max(most, len(all))
		for _, e := range all {
			written[e.Object]++
		}
	}
	sum := 0
	for _, n := range written {
		sum += n
	}
	if sum > totalBurst+seconds || most > totalBurst || sum < seconds/2 {
		t.Errorf("%d Events in a minute, at most %d in a second", sum, most)
	}
	// One object alone.
	b := New()
	sum = 0
	for range 30 * 60 {
		now = now.Add(time.Second)
		b.Observe(now, routeNamed("r"), "u", up, down)
		up, down = down, up
		sum += len(take(b, now))
	}
	if sum < objectBurst || sum > objectBurst+30 {
		t.Errorf("an object that flaps for half an hour gets %d Events", sum)
	}

	for i := range n {
		a.Forget(routeNamed(strconv.Itoa(i)))
	}
	take(b, now.Add(seriesWindow))
	take(b, now.Add(2*seriesWindow))
	if a.Len() != 0 || len(a.objects) != 0 || b.Len() != 0 || len(b.objects) != 0 {
		t.Errorf("of deleted objects %d and %d are left, of a quiet one %d and %d", a.Len(), len(a.objects), b.Len(), len(b.objects))
	}
}

// The memory is bounded, and a replaced object starts anew.
func TestMemoryOfChangesIsBounded(t *testing.T) {
	a := New()
	down := conditions(t, "Ready False NoEndpoints")
	for i := range maxConditions + 5 {
		a.Observe(start, routeNamed(strconv.Itoa(i)), "u", nil, down)
	}
	if a.Len() != maxConditions || a.Dropped() != 5 {
		t.Errorf("%d are remembered, %d dropped", a.Len(), a.Dropped())
	}
	b := New()
	b.Observe(start, routeNamed("r"), "u", nil, down)
	first := take(b, start)
	b.Observe(start, routeNamed("r"), "v", nil, down)
	if all := take(b, start); len(all) != 1 || all[0].Again || all[0].UID != "v" || len(first) != 1 {
		t.Errorf("the Events are %+v, then %+v", first, all)
	}
	for i := range 2 * maxRecords {
		b.Observe(start, routeNamed("r"), "v", nil, conditions(t, fmt.Sprint("Ready False R", i)))
	}
	if n := len(b.objects[routeNamed("r")].conditions["/Ready"].records); n != maxRecords {
		t.Errorf("%d records", n)
	}
}

// An Event names the part of the object whose condition has changed, and its note is short enough
// for an API server.
func TestPartsOfObjects(t *testing.T) {
	h := &gatewayv1.HTTPRoute{}
	h.Status.Parents = []gatewayv1.RouteParentStatus{{
		ParentRef:  gatewayv1.ParentReference{Kind: new(gatewayv1.Kind("Gateway")), Name: "g", SectionName: new(gatewayv1.SectionName("s"))},
		Conditions: []metav1.Condition{{Type: "ResolvedRefs", Status: "False", Reason: "BackendNotFound", Message: strings.Repeat("é", 600)}},
	}}
	g := &gatewayv1.Gateway{}
	g.Status.Conditions = []metav1.Condition{{Type: "Accepted", Status: "False", Reason: "Invalid", Message: "m"}}
	g.Status.Listeners = []gatewayv1.ListenerStatus{{
		Name: "http", Conditions: []metav1.Condition{{Type: "Accepted", Status: "False", Reason: "PortUnavailable"}},
	}}
	var got []string
	for _, o := range []any{h, g, v1alpha1.ModelStatus{Conditions: g.Status.Conditions}} {
		for _, c := range ConditionsOf(o) {
			note := c.note()
			if len(note) > maxNote || !utf8.ValidString(note) {
				t.Errorf("a note has %d bytes: %s", len(note), note)
			}
			got = append(got, c.Reason+": "+note[:min(len(note), 48)])
		}
	}
	if want := []string{
		"BackendNotFound: ResolvedRefs is False at Gateway g (s): éééé", "Invalid: Accepted is False: m",
		"PortUnavailable: Accepted is False at listener http", "Invalid: Accepted is False: m",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
