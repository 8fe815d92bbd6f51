package stream_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/stream"
)

// asking sends a request for a model, and returns a channel that receives the result.
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

// answers simulates control's answer to the first question of extproc.
func answers(f *fleet.Fleet) { f.Answered(f.Question()) }

// A request for a model that control registered a moment ago is served, and does not fail with 404.
func TestModelThatWasJustRegisteredIsServed(t *testing.T) {
	f, _, client := queueing(t, time.Minute, 10)
	answers(f)
	got := asking(t.Context(), t, client, "new")
	select {
	case early := <-got:
		t.Fatalf("before control's answer the request gets %s", early)
	case <-f.Questions():
	}
	question := f.Question()
	f.ApplyPlacement(news(t, f, []string{"registered=new@base", "loaded=new@" + address}))
	f.Answered(question)
	if text := <-got; !strings.Contains(text, address) {
		t.Errorf("it gets %s", text)
	}
}

// Requests for unknown models fail with 404 once control has answered. Requests that arrive
// together share one question to control.
func TestUnknownNamesShareOneQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, client := queueing(t, time.Minute, 10)
		if text := <-asking(t.Context(), t, client, "invented"); !strings.Contains(text, "reply: 404") {
			t.Errorf("with a control that answers no questions it gets %s", text)
		}
		answers(f)
		if text := <-asking(t.Context(), t, client, "/etc/passwd"); !strings.Contains(text, "reply: 400") {
			t.Errorf("a name that cannot be registered gets %s", text)
		}
		var all []<-chan string
		for range 50 {
			all = append(all, asking(t.Context(), t, client, "invented"))
		}
		synctest.Wait() // all requests wait for control
		first := f.Question()
		late := asking(t.Context(), t, client, "invented") // this request arrives after the question was sent, so it needs another question
		synctest.Wait()
		if n := f.Question(); n != first {
			t.Errorf("question %d is sent before %d is answered", n, first)
		}
		f.Answered(first)
		for _, got := range all {
			if text := <-got; !strings.Contains(text, "reply: 404") {
				t.Errorf("it gets %s", text)
			}
		}
		second := f.Question()
		f.Answered(second)
		if text := <-late; !strings.Contains(text, "reply: 404") {
			t.Errorf("the late request gets %s", text)
		}
		if last := f.Question(); first != 2 || second != 3 || last != second {
			t.Errorf("50 requests are question %d, another is %d, and the last question is %d", first, second, last)
		}
	})
}

// While a request waits for control's answer, its body counts as buffered.
func TestBodiesCountDuringAQuestion(t *testing.T) {
	const body = `{"model":"invented"}`
	synctest.Test(t, func(t *testing.T) {
		f, _, server := queueingServer(t, time.Minute, 10)
		client := dialServer(t, server, stream.Own)
		answers(f)
		ends := map[string]func(leave func()){
			"control answers":       func(func()) { f.Answered(f.Question()) },
			"control is silent":     func(func()) { time.Sleep(time.Second) },
			"their clients go away": func(leave func()) { leave() },
		}
		for what, end := range ends {
			ctx, leave := context.WithCancel(t.Context())
			for range 3 {
				asking(ctx, t, client, "invented")
			}
			synctest.Wait()
			if n := server.Reads(0); n != 3*int64(len(body)) {
				t.Errorf("%d bytes are counted for three waiting requests", n)
			}
			end(leave)
			synctest.Wait()
			if n := server.Reads(0); n != 0 {
				t.Errorf("%d bytes are counted after %s", n, what)
			}
			leave()
			f.Answered(f.Question())
		}
		server.Reads(stream.MaxKept)
		if text := <-asking(t.Context(), t, client, "invented"); !strings.Contains(text, "reply: 429 details=headgate_crowded") {
			t.Errorf("a request beyond the limit gets %s", text)
		}
		if n := server.Reads(-stream.MaxKept); n != 0 {
			t.Errorf("%d bytes are counted after all requests", n)
		}
	})
}

// If control does not answer in time, the client gets an error that asks it to try again.
func TestSilentControlMeansTryAgain(t *testing.T) {
	f, _, client := queueing(t, time.Minute, 10)
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
