// Package events decides which Kubernetes Events report the changes of conditions. An Event is due
// when a condition gets worse, and when it recovers. Objects that flap get few Events: a change
// that is undone before its Event is written is not reported, and repeated changes only increase
// the count of an Event. The package does no I/O.
package events

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/internal/objects"
)

const (
	// objectBurst is how many Events an object may get at once, and objectInterval the time until
	// it may get another one.
	objectBurst, objectInterval = 10, time.Minute
	// totalBurst and totalInterval limit the Events of all objects together in the same way.
	totalBurst, totalInterval = 20, time.Second
	// seriesWindow is how long the same change of a condition counts as a repetition. It is also
	// how long a condition that no longer changes is remembered: then its object has its burst
	// again.
	seriesWindow = objectBurst * objectInterval
	// maxConditions is the maximum number of conditions that are remembered. Changes of further
	// ones are not reported.
	maxConditions = 10000
	// maxRecords is the maximum number of Events of one condition that are remembered.
	maxRecords = 4
	// maxNote is Kubernetes' limit for the note of an Event, in bytes.
	maxNote = 1024
	// maxName is the maximum length of an object's name within the name of an Event.
	maxName = 200
)

// The types of Events.
const (
	Normal  = "Normal"
	Warning = "Warning"
)

// Event is an Event to write.
type Event struct {
	Object objects.Object
	UID    string
	// Name is the name of the Event. It is that of an earlier Event if Again is set.
	Name string
	// Again is true if the Event was written before, and only Count and Last have changed.
	Again bool
	// Type is [Normal] or [Warning].
	Type string
	// Reason is that of the condition.
	Reason string
	// Note is at most 1024 bytes long.
	Note string
	// Count is how often the condition has changed in this way, and First and Last are when.
	Count       int32
	First, Last time.Time

	key string
	is  state
}

// compare orders Events by their conditions.
func (e Event) compare(other Event) int {
	return cmp.Or(e.Object.Name.Compare(other.Object.Name), cmp.Compare(e.Object.Kind, other.Object.Kind), cmp.Compare(e.key, other.key))
}

// state is the part of a condition that Events report.
type state struct {
	level  level
	reason string
}

// record counts how often a condition has entered a state.
type record struct {
	state
	name        string // name of the written Event; empty if none was written
	count       int32
	first, last time.Time
}

// tracked is a condition that has changed.
type tracked struct {
	current  state
	note     string
	reported state     // state in the last Event
	since    time.Time // time of the last change
	records  []record
}

// due reports whether the current state must be reported.
func (t *tracked) due() bool {
	switch t.current.level {
	case bad:
		return t.current != t.reported
	case good:
		return t.reported.level == bad
	case absent, waiting:
	}
	return false
}

// enter counts a change to the current state.
func (t *tracked) enter(now time.Time) {
	t.since = now
	if t.current.level != good && t.current.level != bad {
		return
	}
	i := slices.IndexFunc(t.records, func(r record) bool { return r.state == t.current })
	if i >= 0 && now.Sub(t.records[i].last) < seriesWindow {
		t.records[i].count++
		t.records[i].last = now
		return
	}
	fresh := record{state: t.current, count: 1, first: now, last: now}
	switch {
	case i >= 0:
		t.records[i] = fresh
	case len(t.records) < maxRecords:
		t.records = append(t.records, fresh)
	default:
		oldest := 0
		for j := range t.records {
			if t.records[j].last.Before(t.records[oldest].last) {
				oldest = j
			}
		}
		t.records[oldest] = fresh
	}
}

// record returns the record of the current state.
func (t *tracked) record() *record {
	for i := range t.records {
		if t.records[i].state == t.current {
			return &t.records[i]
		}
	}
	return nil
}

// bucket is a token bucket.
type bucket struct {
	tokens float64
	at     time.Time // time of the last refill; zero: it is full
}

// refill adds the tokens of the time since the last refill, and reports whether one is left.
func (b *bucket) refill(now time.Time, burst int, interval time.Duration) bool {
	if b.at.IsZero() {
		b.tokens = float64(burst)
	} else if since := now.Sub(b.at); since > 0 {
		b.tokens = min(float64(burst), b.tokens+float64(since)/float64(interval))
	}
	b.at = now
	return b.tokens >= 1
}

// object is an object with conditions that have changed.
type object struct {
	uid        string
	bucket     bucket
	conditions map[string]*tracked // by place and type
}

// Aggregator turns changes of conditions into Events. Its memory is bounded, and it releases an
// object 10 minutes after the object's last change, or on [Aggregator.Forget]. It is not safe for
// concurrent use.
type Aggregator struct {
	objects map[objects.Object]*object
	total   bucket
	tracked int       // number of conditions in objects
	pruned  time.Time // time of the last prune
	dropped int
}

// New returns an Aggregator.
func New() *Aggregator { return &Aggregator{objects: make(map[objects.Object]*object)} }

// Observe records that the conditions of an object were written. Before are those that the object
// had.
func (a *Aggregator) Observe(now time.Time, of objects.Object, uid string, before, after []Condition) {
	if o := a.objects[of]; o != nil && o.uid != uid {
		a.Forget(of) // it was replaced
	}
	is := make(map[string]bool, len(after))
	for _, c := range after {
		is[c.key()] = true
		was := state{}
		if i := slices.IndexFunc(before, func(b Condition) bool { return b.key() == c.key() }); i >= 0 {
			was = before[i].state()
		}
		a.observe(now, of, uid, c, was)
	}
	for _, c := range before {
		if !is[c.key()] {
			was := c.state()
			c.Status, c.Reason, c.Message = metav1.ConditionUnknown, reasonResolved, ""
			a.observe(now, of, uid, c, was)
		}
	}
}

// observe records that a condition was in a state before.
func (a *Aggregator) observe(now time.Time, of objects.Object, uid string, c Condition, was state) {
	is := c.state()
	o := a.objects[of]
	var t *tracked
	if o != nil {
		t = o.conditions[c.key()]
	}
	switch {
	case t != nil && t.current == is:
		t.note = c.note()
		return
	case t != nil:
	case was == is, is.level != bad && was.level != bad:
		return
	case a.tracked >= maxConditions:
		a.dropped++
		return
	default:
		if o == nil {
			o = &object{uid: uid, conditions: make(map[string]*tracked)}
			a.objects[of] = o
		}
		t = new(tracked)
		if was.level == bad {
			t.reported = was
		}
		o.conditions[c.key()] = t
		a.tracked++
	}
	t.current, t.note = is, c.note()
	t.enter(now)
}

// Next returns the Event to write next; false if none may be written now. The caller calls
// [Aggregator.Written] after it has written the Event. Otherwise it gets the Event again.
func (a *Aggregator) Next(now time.Time) (Event, bool) {
	a.prune(now)
	if !a.total.refill(now, totalBurst, totalInterval) {
		return Event{}, false
	}
	var found *tracked
	var by *object
	var e Event
	for of, o := range a.objects {
		if !o.bucket.refill(now, objectBurst, objectInterval) {
			continue
		}
		for key, t := range o.conditions {
			is := Event{Object: of, UID: o.uid, key: key}
			if t.due() && (found == nil || cmp.Or(t.since.Compare(found.since), is.compare(e)) < 0) {
				found, by, e = t, o, is
			}
		}
	}
	if found == nil {
		return Event{}, false
	}
	a.total.tokens--
	by.bucket.tokens--
	r := found.record()
	e.Type, e.Reason, e.Note, e.is = Normal, r.reason, found.note, r.state
	if r.level == bad {
		e.Type = Warning
	}
	e.Name, e.Again, e.Count, e.First, e.Last = r.name, r.name != "", r.count, r.first, r.last
	if !e.Again {
		e.Name = fmt.Sprintf("%s.%x", e.Object.Name.Name[:min(len(e.Object.Name.Name), maxName)], now.UnixNano())
	}
	return e, true
}

// Written records that an Event was written, or that it cannot be written.
func (a *Aggregator) Written(e Event) {
	o := a.objects[e.Object]
	if o == nil || o.uid != e.UID || o.conditions[e.key] == nil {
		return
	}
	t := o.conditions[e.key]
	t.reported = e.is
	for i := range t.records {
		if r := &t.records[i]; r.state == e.is && (r.name == "" || r.name == e.Name) {
			r.name = e.Name
		}
	}
}

// Forget releases an object that was deleted. Its Events are no longer due.
func (a *Aggregator) Forget(of objects.Object) {
	if o := a.objects[of]; o != nil {
		a.tracked -= len(o.conditions)
		delete(a.objects, of)
	}
}

// Len returns the number of conditions that are remembered.
func (a *Aggregator) Len() int { return a.tracked }

// Dropped returns how many changes were not reported because too many conditions had changed.
func (a *Aggregator) Dropped() int { return a.dropped }

// prune releases conditions that have not changed for a while, once a minute.
func (a *Aggregator) prune(now time.Time) {
	if now.Sub(a.pruned) < time.Minute {
		return
	}
	a.pruned = now
	for of, o := range a.objects {
		for key, t := range o.conditions {
			if now.Sub(t.since) >= seriesWindow && !t.due() {
				delete(o.conditions, key)
				a.tracked--
			}
		}
		if len(o.conditions) == 0 {
			delete(a.objects, of)
		}
	}
}
