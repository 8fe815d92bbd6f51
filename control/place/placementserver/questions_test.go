package placementserver_test

import (
	"testing"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/place/decide"
)

// The answer to a question is sent once, after everything that was published before the question,
// however many Updates that takes.
func TestAnswerFollowsEarlierChanges(t *testing.T) {
	inMemory(t, func(w *world) {
		x := w.connectWith(&placement.Report{Process: "x", Question: 1})
		answered := func() (answers []uint64, models int) {
			x.mu.Lock()
			defer x.mu.Unlock()
			for _, u := range x.updates {
				if models += len(u.GetRegistered()); u.GetAnswer() > 0 {
					answers = append(answers, u.GetAnswer())
				}
			}
			return answers, models
		}
		if got, _ := answered(); len(got) != 0 {
			t.Errorf("before all is published the answers are %v", got)
		}
		w.Ready()
		w.after(0)
		if got, _ := answered(); len(got) != 1 || got[0] != 1 {
			t.Errorf("the answers are %v", got)
		}
		many := make(map[decide.Key]bool)
		for i := range 4000 { // these changes fill two Updates
			many[model(string(rune('一'+i)))] = true
		}
		w.Publish(decide.Change{Registered: many})
		x.send(&placement.Report{Process: "x", Question: 2})
		w.after(0)
		x.mu.Lock()
		before := 0
		for _, u := range x.updates {
			if before += len(u.GetRegistered()); u.GetAnswer() == 2 && before != len(many) {
				t.Errorf("the answer comes after %d models of %d", before, len(many))
			}
		}
		x.mu.Unlock()
		if got, models := answered(); len(got) != 2 || got[1] != 2 || models != len(many) {
			t.Errorf("the answers are %v, and %d models are said", got, models)
		}
		x.send(&placement.Report{Process: "x", Question: 2})
		w.after(0)
		if got, _ := answered(); len(got) != 2 {
			t.Errorf("it is answered again: %v", got)
		}
	})
}
