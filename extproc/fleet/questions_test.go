package fleet_test

import (
	"testing"

	"github.com/headgate/headgate/extproc/fleet"
)

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A question answers the requests that waited before it was sent, and no others.
func TestQuestionAnswersThoseBeforeIt(t *testing.T) {
	f := fleet.New(fleet.Config{})
	if _, _, ok := f.AskControl(); ok || f.Answers() {
		t.Error("control is asked before it has answered anything")
	}
	if n := f.Question(); n != 1 {
		t.Errorf("the first question is %d", n)
	}
	f.Answered(1)
	a, _, _ := f.AskControl()
	b, _, _ := f.AskControl()
	if !closed(f.Questions()) || f.Question() != 2 {
		t.Error("there is no question to send, or its number is not 2")
	}
	c, _, _ := f.AskControl()
	if n := f.Question(); n != 2 {
		t.Errorf("before 2 is answered, %d is sent", n)
	}
	closed(f.Questions())
	f.Answered(1) // an answer to an earlier question
	if closed(a) {
		t.Error("an old answer counts")
	}
	f.Answered(2)
	if !closed(a) || !closed(b) || closed(c) {
		t.Errorf("answered are %v, %v and %v", closed(a), closed(b), closed(c))
	}
	if !closed(f.Questions()) || f.Question() != 3 {
		t.Error("the next question is not sent")
	}
	f.Answered(3)
	if !closed(c) {
		t.Error("it is not answered")
	}
	if n := f.Question(); n != 3 {
		t.Errorf("no request asks, and %d is sent", n)
	}
	f.ForgetQuestions()
	if _, _, ok := f.AskControl(); ok || f.Question() != 1 {
		t.Error("the next stream does not start with a new question")
	}
}

// The number of requests that wait for an answer at once is limited. A request that stops waiting
// frees its place.
func TestQuestionsAreBounded(t *testing.T) {
	f := fleet.New(fleet.Config{})
	f.Answered(f.Question())
	var over []func()
	for {
		_, done, ok := f.AskControl()
		if !ok {
			break
		}
		over = append(over, done)
	}
	if len(over) != 1000 {
		t.Errorf("%d requests ask", len(over))
	}
	over[0]()
	if _, _, ok := f.AskControl(); !ok {
		t.Error("one is done, and no other may ask")
	}
}
