package placementclient_test

import (
	"testing"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/internal/objects"
)

// A question is sent to control. Its answer takes effect after all earlier updates of control have
// been applied. A control that has never answered gets only the first question.
func TestQuestionIsAnswered(t *testing.T) {
	r := newRig(t)
	s := r.next()
	s.say(complete())
	s.inForce()
	if _, _, ok := r.fleet.AskControl(); ok {
		t.Error("a control that has answered nothing is asked")
	}
	s.until("the first question comes", func() bool { return s.question == 1 })
	s.say(&placement.Update{Answer: 1})
	r.await("it is answered", r.fleet.Answers)
	answered, done, ok := r.fleet.AskControl()
	if !ok {
		t.Fatal("it cannot be asked")
	}
	defer done()
	s.until("the second question comes", func() bool { return s.question == 2 })
	s.say(&placement.Update{Answer: 2, Registered: []*placement.Registered{{Key: wireKey("new")}}})
	<-answered
	if _, ok := r.fleet.Registered("new", func(p objects.Name) bool { return p == thePool }); !ok {
		t.Error("it is answered before the preceding state is in force")
	}
	close(s.end)
	r.await("the end of the stream is noticed", func() bool { return !r.fleet.Answers() })
	again := r.next()
	again.until("the next stream starts with a new question", func() bool { return again.question == 1 })
}
