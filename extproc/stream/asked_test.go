package stream_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/extproc/fleet"
)

// asking sends a request for a model, and returns what it gets.
func asking(ctx context.Context, t *testing.T, client extprocv3.ExternalProcessorClient, model string) <-chan string {
	t.Helper()
	got := make(chan string, 1)
	go func() {
		s, err := client.Process(ctx)
		if err != nil {
			got <- err.Error()
			return
		}
		var last *extprocv3.ProcessingResponse
		for _, line := range []string{"headers :method=POST :path=/v1/completions", `body {"model":"` + model + `"}`} {
			if err = s.Send(message(t, line)); err == nil {
				last, err = s.Recv()
			}
			if err != nil {
				got <- err.Error()
				return
			}
		}
		got <- render(t, last)
	}()
	return got
}

// answers has control answer the first question of its stream.
func answers(f *fleet.Fleet) { f.Answered(f.Question()) }

// A model that control registers while its word is on the way is served, and gets no 404.
func TestAModelThatWasJustRegisteredIsServed(t *testing.T) {
	f, _, client := holding(t, time.Minute, 10)
	answers(f)
	got := asking(t.Context(), t, client, "new")
	select {
	case early := <-got:
		t.Fatalf("before control's word has come it gets %s", early)
	case <-f.Questions():
	}
	question := f.Question()
	f.Hear(news(t, f, []string{"registered=new@base", "loaded=new@" + address}))
	f.Answered(question)
	if text := <-got; !strings.Contains(text, address) {
		t.Errorf("it gets %s", text)
	}
}

// Invented names get 404 once control has answered. All that come together are one question.
func TestInventedNamesAreOneQuestion(t *testing.T) {
	f, _, client := holding(t, time.Minute, 10)
	if text := <-asking(t.Context(), t, client, "invented"); !strings.Contains(text, "reply: 404") {
		t.Errorf("where control answers no questions it gets %s", text)
	}
	answers(f)
	if text := <-asking(t.Context(), t, client, "/etc/passwd"); !strings.Contains(text, "reply: 400") {
		t.Errorf("a name that cannot be registered gets %s", text)
	}
	var requests sync.WaitGroup
	for range 50 {
		got := asking(t.Context(), t, client, "invented")
		requests.Go(func() {
			if text := <-got; !strings.Contains(text, "reply: 404") {
				t.Errorf("it gets %s", text)
			}
		})
	}
	over := make(chan struct{})
	go func() { requests.Wait(); close(over) }()
	var last uint64
	for waits := true; waits; {
		select {
		case <-f.Questions():
			last = f.Question()
			f.Answered(last)
		case <-over:
			waits = false
		}
	}
	if last < 2 || last > 51 {
		t.Errorf("the last question is %d", last)
	}
}

// A control that does not answer in time leaves it open whether there is the model: the client is told to try again.
func TestASilentControlLeavesAModelOpen(t *testing.T) {
	f, _, client := holding(t, time.Minute, 10)
	answers(f)
	began := time.Now()
	if text := <-asking(t.Context(), t, client, "new"); !strings.Contains(text, "reply: 503") || !strings.Contains(text, "retry-after=1") {
		t.Errorf("it gets %s", text)
	}
	if took := time.Since(began); took < 100*time.Millisecond || took > 5*time.Second {
		t.Errorf("after %v", took)
	}
	f.ForgetQuestions()
	if text := <-asking(t.Context(), t, client, "new"); !strings.Contains(text, "reply: 404") {
		t.Errorf("without control it gets %s", text)
	}
}
