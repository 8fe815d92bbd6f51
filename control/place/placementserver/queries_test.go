package placementserver_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/placement"
)

// program returns the first Report of an extproc that answers queries.
func program(name string) *placement.Report {
	return &placement.Report{Process: "p-" + name, Program: &placement.Program{Name: name, Version: "v1", Queries: []string{"explain"}}}
}

// queries returns the queries that an extproc has received.
func (x *extproc) queries() (all []*placement.Query) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, u := range x.updates {
		all = append(all, u.GetQueries()...)
	}
	return all
}

// All extprocs are asked at the same time. Each one's answer or error is returned.
func TestAskReturnsTheAnswerOfEachExtproc(t *testing.T) {
	inMemory(t, func(w *world) {
		w.connect("old")
		x, y, z := w.connectWith(program("x")), w.connectWith(program("y")), w.connectWith(program("z"))
		silent := w.connectWith(program("silent"))
		var got admin.Answers
		began, took := time.Now(), time.Duration(0)
		go func() {
			got = w.Ask(w.t.Context(), "explain", []byte(`{"a":1}`))
			took = time.Since(began)
		}()
		synctest.Wait()
		for _, of := range []*extproc{x, y, z, silent} {
			if q := of.queries(); len(q) != 1 || q[0].GetKind() != "explain" || string(q[0].GetBody()) != `{"a":1}` {
				t.Fatalf("an extproc is asked %v", q)
			}
		}
		number := x.queries()[0].GetNumber()
		x.send(&placement.Report{Answers: []*placement.Answer{{Query: number + 7, Result: []byte(`0`)}, {Query: number, Result: []byte(`{"b":2}`)}}})
		x.send(&placement.Report{Answers: []*placement.Answer{{Query: number, Result: []byte(`{"again":2}`)}}})
		y.send(&placement.Report{Answers: []*placement.Answer{{Query: y.queries()[0].GetNumber(), Error: "no such thing"}}})
		z.leave()
		w.after(6 * time.Second)
		if took > 5*time.Second || took < time.Second {
			t.Errorf("it took %v", took)
		}
		var lines []string
		for _, a := range got.Extprocs {
			lines = append(lines, strings.Join([]string{a.Extproc, a.Version, string(a.Result), a.Error}, "|"))
		}
		want := []string{
			`old|||this version of extproc cannot answer "explain": upgrade it`,
			`silent|v1||the extproc has not answered within 5s`,
			`x|v1|{"b":2}|`,
			`y|v1||no such thing`,
			`z|v1||the extproc has disconnected from control`,
		}
		if !slices.Equal(lines, want) {
			t.Errorf("the answers are %q,\nwant %q", lines, want)
		}
		silent.send(&placement.Report{Answers: []*placement.Answer{{Query: number, Result: []byte(`1`)}}}) // too late: ignored

		if got := w.Ask(w.t.Context(), "weather", nil); got.Extprocs[1].Error != `this version of extproc cannot answer "weather": upgrade it` {
			t.Errorf("a kind that nobody knows: %v", got)
		}
		if n := len(x.queries()); n != 1 {
			t.Errorf("x got %d queries: it was asked what it does not know", n)
		}
	})
}

// An extproc that answers nothing gets a limited number of queries, also when Updates cannot be
// sent. When all have ended, it is asked again.
func TestOpenQueriesAreBounded(t *testing.T) {
	inMemory(t, func(w *world) {
		x := w.connectWith(program("x"))
		var answers []string
		results := make(chan string)
		for range 20 {
			go func() { results <- w.Ask(w.t.Context(), "explain", nil).Extprocs[0].Error }()
		}
		for range 20 {
			answers = append(answers, <-results)
		}
		refused := 0
		for _, a := range answers {
			if a == "the extproc has not answered earlier queries: ask again later" {
				refused++
			}
		}
		if n := len(x.queries()); n != 16 || refused != 4 {
			t.Errorf("it got %d queries, and %d were refused: want 16 and 4", n, refused)
		}
		go func() { results <- w.Ask(w.t.Context(), "explain", nil).Extprocs[0].Error }()
		synctest.Wait()
		last := x.queries()[len(x.queries())-1]
		x.send(&placement.Report{Answers: []*placement.Answer{{Query: last.GetNumber(), Result: []byte(`not JSON`)}}})
		if got := <-results; got != "the extproc's answer is no JSON" {
			t.Errorf("the answer is %q", got)
		}
	})
}
