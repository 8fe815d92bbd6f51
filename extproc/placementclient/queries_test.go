package placementclient_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/internal/query"
)

// A query is answered once, with its number, whatever else happens on the stream. Its answer
// acknowledges nothing that was not acknowledged before.
func TestQueriesAreAnswered(t *testing.T) {
	entered, proceed := make(chan struct{}, 10), make(chan struct{})
	r := newRigWith(t, query.Handlers{
		"echo": func(_ context.Context, body []byte) (any, error) { return map[string]string{"is": string(body)}, nil },
		"fail": func(context.Context, []byte) (any, error) { return nil, errors.New("there is none") },
		"slow": func(context.Context, []byte) (any, error) {
			entered <- struct{}{}
			<-proceed
			return 1, nil
		},
		"large": func(context.Context, []byte) (any, error) { return make([]byte, 3<<20), nil },
	})
	s := r.next()
	s.until("it describes itself", func() bool { return s.program != nil })
	if got := fmt.Sprint(s.program.GetName(), s.program.GetVersion(), s.program.GetQueries()); got != "host/1v1[echo fail large slow]" {
		t.Errorf("it describes itself as %s", got)
	}
	s.say(complete())
	s.inForce()
	ask := func(number uint64, kind string) uint64 {
		return s.say(&placement.Update{Queries: []*placement.Query{{Number: number, Kind: kind, Body: []byte("x")}}})
	}
	for number, want := range map[uint64][2]string{
		7: {"echo", `{"is":"x"} `}, 8: {"fail", ` there is none`},
		9:  {"weather", ` this version of extproc cannot answer "weather": upgrade it`},
		10: {"large", fmt.Sprintf(` the answer has %d bytes, and at most %d are possible`, 4<<20+2, 3<<20)},
	} {
		ask(number, want[0])
		s.until("it is answered", func() bool { return s.answers[number] != "" })
		if s.answers[number] != want[1] {
			t.Errorf("%s is answered with %q, want %q", want[0], s.answers[number], want[1])
		}
	}
	for number := range uint64(5) { // 4 are answered at the same time
		ask(number+20, "slow")
	}
	const busy = " this extproc answers other queries: ask again later"
	s.until("one is refused", func() bool { return len(s.answers) == 5 })
	if s.answers[24] != busy {
		t.Errorf("the answers are %v", s.answers)
	}
	for range 4 {
		<-entered
	}
	// While queries are answered, updates are applied.
	s.say(&placement.Update{Copies: []*placement.Copy{is("m", a, placement.Copy_LOADED)}})
	s.inForce()
	close(proceed)
	s.until("all are answered", func() bool { return len(s.answers) == 9 })
	ask(30, "echo")
	s.until("it is answered", func() bool { return s.answers[30] != "" })
}
