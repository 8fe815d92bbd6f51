package llm

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/test/pipenet"
)

// Without a shutdown timeout, requests in flight in a stopped vLLM make no progress and do not end.
func TestStoppedWithoutTimeoutRequestsHangUntilTheirClientsLeave(t *testing.T) {
	inWorld(t, Config{Profile: slow()}, func(w *world) {
		ctx, leave := context.WithCancel(context.Background())
		resp := w.open(ctx, "/v1/completions", `{"prompt":"abcd","max_tokens":100,"stream":true}`)
		read := make(chan int, 1)
		go func() {
			n, err := io.Copy(io.Discard, resp.Body)
			if err == nil {
				t.Error("the stream ended")
			}
			read <- int(n)
		}()
		go func() {
			if resp, err := w.send(ctx, "POST /v1/completions", ask4("", 100)); err == nil {
				w.close(resp)
				t.Error("the other request has an answer")
			}
		}()
		time.Sleep(300 * time.Millisecond)
		w.stop()
		time.Sleep(time.Hour)
		select {
		case err := <-w.over:
			t.Fatalf("the engine has ended: %v", err)
		default:
		}
		if _, err := w.send(context.Background(), "GET /health", ""); err == nil {
			t.Error("a new connection was let in")
		}
		leave()
		if err := <-w.over; err != nil {
			t.Errorf("Run: %v", err)
		}
		w.over <- nil
		if n := <-read; n == 0 {
			t.Error("nothing came before the stop")
		}
	})
}

func TestStoppedWithTimeoutRequestsFinishAndNewOnesAreRefused(t *testing.T) {
	inWorld(t, Config{Profile: slow(), ShutdownTimeout: 15 * time.Second}, func(w *world) {
		stream := w.open(context.Background(), "/v1/completions", stream4)
		w.stop()
		synctest.Wait()
		for path, words := range map[string]string{
			"/v1/completions":       "cannot schedule new futures after shutdown",
			"/v1/chat/completions":  "cannot schedule new futures after shutdown",
			"/tokenize":             "cannot schedule new futures after shutdown",
			"/detokenize":           "cannot schedule new futures after shutdown",
			"/v1/load_lora_adapter": "Server shutting down", "/adapters": "Server shutting down",
		} {
			a := w.post(path, ask4("", 1))
			want := `{"error":{"message":"` + words + `","type":"InternalServerError","param":null,"code":500}}`
			if a.status != http.StatusInternalServerError || a.body != want {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
		want := `{"type":"error","error":{"type":"InternalServerError","message":"cannot schedule new futures after shutdown"}}`
		if a := w.post("/v1/messages/count_tokens", ask4("", 1)); a.status != http.StatusInternalServerError || a.body != want {
			t.Errorf("in Anthropic's form: %d %s", a.status, a.body)
		}
		if a := w.do("GET /health", ""); a.status != http.StatusOK {
			t.Errorf("/health: %d", a.status)
		}
		w.wantTimes(w.lines(stream), 0.102, 0.152, 0.202, 0.252, 0.252)
		if err := <-w.over; err != nil {
			t.Errorf("Run: %v", err)
		}
		w.over <- nil
	})
}

// A vLLM without requests still answers while it ends its processes. It still unloads adapters,
// which only removes a name. A load that arrives then hangs, and the engine never ends.
func TestStoppedWithTimeoutALoadHangsForGood(t *testing.T) {
	c := Config{Profile: slow(), ShutdownTimeout: 15 * time.Second, ShutdownDelay: 5 * time.Second, Adapters: []Adapter{{"a", "sim:"}}}
	inWorld(t, c, func(w *world) {
		w.stop()
		time.Sleep(4 * time.Second)
		if a := w.post("/v1/unload_lora_adapter", `{"lora_name":"a"}`); a.status != http.StatusOK {
			t.Errorf("unload: %d %s", a.status, a.body)
		}
		if a := w.post("/tokenize", `{"prompt":""}`); a.status != http.StatusInternalServerError {
			t.Errorf("tokenize: %d %s", a.status, a.body)
		}
		ctx, leave := context.WithTimeout(context.Background(), 3*time.Second)
		defer leave()
		if resp, err := w.send(ctx, "POST /v1/load_lora_adapter", `{"lora_name":"b","lora_path":"sim:"}`); err == nil {
			w.close(resp)
			t.Errorf("a load is answered with %s", resp.Status)
		}
		time.Sleep(time.Hour)
		select {
		case err := <-w.over:
			t.Fatalf("the engine has ended: %v", err)
		default:
		}
		if _, err := w.send(context.Background(), "GET /health", ""); err == nil {
			t.Error("a new connection was let in")
		}
		w.server.Kill()
		if err := <-w.over; err != nil {
			t.Errorf("Run: %v", err)
		}
		w.over <- nil
	})
	inWorld(t, c, func(w *world) {
		w.stop()
		if err := <-w.over; err != nil {
			t.Errorf("Run: %v", err)
		}
		w.over <- nil
		w.at(5, "without a load it ends")
	})
}

func TestStoppedWithTimeoutRemainingRequestsAreCutOff(t *testing.T) {
	inWorld(t, Config{Profile: slow(), ShutdownTimeout: 2 * time.Second}, func(w *world) {
		resp := w.open(context.Background(), "/v1/completions", `{"prompt":"abcd","max_tokens":2000,"stream":true}`)
		other := make(chan error, 1)
		go func() {
			resp, err := w.send(context.Background(), "POST /v1/completions", ask4("", 2000))
			if err == nil {
				w.close(resp)
			}
			other <- err
		}()
		synctest.Wait()
		w.stop()
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Error("the stream ended as if it were whole")
		}
		w.at(2, "the stream was cut off")
		if <-other == nil {
			t.Error("the other request has an answer")
		}
		if err := <-w.over; err != nil {
			t.Errorf("Run: %v", err)
		}
		w.over <- nil
	})
}

// An engine whose Handler is served by the caller's own HTTP server stops in the same way.
func TestRunWithAnotherServersHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Profile: slow()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		over := make(chan error, 1)
		go func() { over <- s.Run(ctx) }()
		network := pipenet.Listen()
		server := &http.Server{Handler: s.Handler()}
		go func() { _ = server.Serve(network) }()
		client := &http.Client{Transport: &http.Transport{DialContext: network.Dial, DisableKeepAlives: true}}
		w := &world{T: t, server: s, client: client, start: time.Now()}
		if a := w.post("/v1/completions", ask4("", 1)); a.status != http.StatusOK {
			t.Errorf("%d %s", a.status, a.body)
		}
		stop()
		if err := <-over; err != nil {
			t.Errorf("Run: %v", err)
		}
		// The engine has stopped. The request must fail, not hang.
		if resp, err := w.send(context.Background(), "POST /v1/completions", ask4("", 1)); err == nil {
			w.close(resp)
			t.Error("an engine that has ended answers")
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAsleepTheEngineIsHealthyAndRequestsWait(t *testing.T) {
	inWorld(t, Config{Profile: slow(), SleepMode: true}, func(w *world) {
		if a := w.post("/sleep?level=1", ""); a.body != `{"status":"sleeping","level":1}` {
			t.Fatalf("%d %s", a.status, a.body)
		}
		done := make(chan answer, 1)
		go func() { done <- w.post("/v1/completions", ask4("", 1)) }()
		time.Sleep(time.Hour)
		state := `vllm:engine_sleep_state{engine="0",model_name="base",sleep_state=`
		w.wantMetrics(state+`"awake"}`, "0.0", state+`"weights_offloaded"}`, "1.0", state+`"discard_all"}`, "0.0",
			"vllm:num_requests_waiting{", "1.0")
		if a := w.do("GET /health", ""); a.status != http.StatusOK {
			t.Errorf("/health: %d", a.status)
		}
		if a := w.do("GET /is_sleeping", ""); a.body != `{"is_sleeping":true}` {
			t.Error(a.body)
		}
		w.post("/wake_up", "")
		if a := <-done; a.status != http.StatusOK {
			t.Errorf("%d %s", a.status, a.body)
		}
		w.at(3600.101, "the answer")
		if a := w.post("/sleep?level=3", ""); a.status != http.StatusBadRequest {
			t.Errorf("level 3: %d", a.status)
		}
	})
}
