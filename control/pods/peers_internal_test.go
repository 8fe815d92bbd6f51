package pods

import (
	"testing"
	"time"

	"github.com/headgate/headgate/control/attach/drive"
)

// What a control said counts while it says it again, and no longer; what says nothing new is not told.
func TestWhatOtherControlsHaveSeenCountsForAWhile(t *testing.T) {
	p := Pod{}.Peers("own")
	now := time.Unix(1000, 0)
	tell := func(what string, changes bool, do func()) map[string]drive.Seen {
		t.Helper()
		_, before := p.Seen()
		do()
		seen, after := p.Seen()
		if (before != after) != changes {
			t.Errorf("%s: it is told %v", what, before != after)
		}
		return seen
	}
	const said, again, other = `{"beat":1,"seen":{"ns/g":{"has":"x"}}}`, `{"beat":2,"seen":{"ns/g":{"has":"x"}}}`, `{"beat":3,"seen":{"ns/g":{"has":"y"}}}`
	if seen := tell("another control says something", true, func() { p.hear(map[string]string{"own": other, "one": said}, now) }); len(seen) != 1 || seen["one"]["ns/g"].Has != "x" {
		t.Errorf("%v", seen)
	}
	tell("it says it again", false, func() { p.hear(map[string]string{"one": again}, now.Add(25*time.Second)) })
	tell("it said it 30 s ago", false, func() { p.forget(now.Add(55 * time.Second)) })
	if seen := tell("it says something else", true, func() { p.hear(map[string]string{"one": other}, now.Add(55*time.Second)) }); seen["one"]["ns/g"].Has != "y" {
		t.Errorf("%v", seen)
	}
	tell("the same is read again", false, func() { p.hear(map[string]string{"one": other}, now.Add(80*time.Second)) })
	if seen := tell("it is silent for long", true, func() { p.forget(now.Add(86 * time.Second)) }); len(seen["one"]) > 0 {
		t.Errorf("%v", seen)
	}
	tell("it is silent on", false, func() { p.forget(now.Add(99 * time.Second)) })
	tell("what it says cannot be read", false, func() { p.hear(map[string]string{"one": "{"}, now) })
	if seen := tell("it is taken away", true, func() { p.hear(nil, now) }); len(seen) != 0 {
		t.Errorf("%v", seen)
	}
}
