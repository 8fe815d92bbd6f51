package llm

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func ask4(model string, tokens int) string {
	return fmt.Sprintf(`{"model":%q,"prompt":"abcd","max_tokens":%d}`, model, tokens)
}

func loadBody(name, path string) string {
	return fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, name, path)
}

func TestLoadingTakesItsTimeAndStopsTheEngineMeanwhile(t *testing.T) {
	inWorld(t, Config{Profile: slow()}, func(w *world) {
		stream := w.open(context.Background(), "/v1/completions", stream4)
		// The current step ends at 0.102 s. Then come the load, which takes 2 s, and the other
		// three tokens.
		if a := w.post("/v1/load_lora_adapter", loadBody("x", "sim:")); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		w.at(2.102, "the adapter was loaded")
		w.wantMetrics("sim:host_loads_total{", "1.0", "sim:slot_loads_total{", "0.0", "sim:slots_used{", "0.0", "sim:slots{", "2.0")
		w.wantTimes(w.lines(stream), 2.102, 2.152, 2.202, 2.252, 2.252)

		// Loading the adapter into a slot delays the first request by 0.5 s, and the next one not
		// at all.
		w.start = time.Now()
		w.post("/v1/completions", ask4("x", 1))
		w.at(0.601, "the first request for the adapter")
		w.wantMetrics("sim:slot_loads_total{", "1.0", "sim:slots_used{", "1.0")
		w.start = time.Now()
		w.post("/v1/completions", strings.Replace(ask4("x", 1), "abcd", "dcba", 1))
		w.at(0.101, "the next one")
	})
}

func TestAdaptersOfTheConfigurationAreThereAtTheStart(t *testing.T) {
	inWorld(t, Config{Profile: slow(), Adapters: []Adapter{{"x", "sim:"}, {"y", "sim:rank=4"}}}, func(w *world) {
		w.at(0, "the start")
		if now := w.server.driver.now(); now < 4 {
			t.Errorf("the step model is at %v s: its time would go back behind the loads, which took 4 s", now)
		}
		w.wantMetrics("sim:host_loads_total{", "2.0")
		w.post("/v1/completions", ask4("y", 1))
		w.at(0.601, "a request: the slot, and no load")
		a := w.do("GET /v1/models", "")
		if got := a.get(`data.#.id`).Raw; got != `["base","x","y"]` {
			t.Errorf("the models are %s", got)
		}
		if a.get("data.1.parent").Str != "base" || a.get("data.1.root").Str != "sim:" || a.get("data.0.max_model_len").Int() != 4096 {
			t.Errorf("the cards are %s", a.body)
		}
	})
	for _, bad := range []Adapter{{"x", "/no/such/folder"}, {"x", "sim:rank=17"}, {"base", "sim:"}, {"", "sim:"}} {
		if _, err := New(Config{Profile: slow(), Adapters: []Adapter{bad}}); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}

// A third adapter waits while two other adapters have requests. No metric names the waiting
// adapter.
func TestThirdAdapterStarvesAndIsInvisible(t *testing.T) {
	adapters := []Adapter{{"a1", "sim:"}, {"a2", "sim:"}, {"a3", "sim:"}}
	inWorld(t, Config{Profile: slow(), Adapters: adapters}, func(w *world) {
		done := make(chan string, 3)
		for i, tokens := range []int{40, 30, 1} {
			name := adapters[i].Name
			go func() {
				w.post("/v1/completions", ask4(name, tokens))
				done <- name
			}()
			synctest.Wait()
		}
		time.Sleep(2200 * time.Millisecond)
		w.wantMetrics("vllm:num_requests_running{", "2.0", "vllm:num_requests_waiting{", "1.0",
			`vllm:num_requests_waiting_by_reason{engine="0",model_name="base",reason="deferred"}`, "1.0",
			`vllm:num_requests_waiting_by_reason{engine="0",model_name="base",reason="capacity"}`, "0.0")
		page := w.do("GET /metrics", "").body
		if strings.Contains(page, "a3") || !strings.Contains(page,
			`{max_lora="2",running_lora_adapters="a1,a2",waiting_lora_adapters="a1,a2"}`) {
			t.Errorf("what is said of adapters:\n%s", strings.Join(grep(page, "lora_requests_info"), "\n"))
		}
		if order := []string{<-done, <-done, <-done}; fmt.Sprint(order) != "[a2 a3 a1]" {
			t.Errorf("they ended in the order %v", order)
		}
		w.post("/v1/completions", ask4("", 1))
		// Series are never removed. The value of each is the time when it last applied, and the
		// newest one has no adapter.
		newest, value := "", 0.0
		for _, l := range grep(w.do("GET /metrics", "").body, "vllm:lora_requests_info{") {
			var v float64
			if _, err := fmt.Sscan(l[strings.LastIndexByte(l, ' ')+1:], &v); err != nil {
				t.Fatal(err)
			}
			if v > value {
				newest, value = l, v
			}
		}
		if !strings.Contains(newest, `running_lora_adapters=""`) {
			t.Errorf("the newest is %s", newest)
		}
	})
}

func grep(text, part string) (found []string) {
	for l := range strings.SplitSeq(text, "\n") {
		if strings.Contains(l, part) {
			found = append(found, l)
		}
	}
	return found
}

func TestUnloadingTakesTheNameAndLetsRequestsFinish(t *testing.T) {
	inWorld(t, Config{Profile: slow(), Adapters: []Adapter{{"x", "sim:"}}}, func(w *world) {
		done := make(chan answer, 1)
		go func() { done <- w.post("/v1/completions", ask4("x", 20)) }()
		synctest.Wait()
		if a := w.post("/v1/unload_lora_adapter", `{"lora_name":"x"}`); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if a := w.post("/v1/completions", ask4("x", 1)); a.status != http.StatusNotFound {
			t.Errorf("a request after the unload: %d", a.status)
		}
		if a := <-done; a.status != http.StatusOK || a.get("usage.completion_tokens").Int() != 20 {
			t.Errorf("the request that ran: %d %s", a.status, a.body)
		}
		// The weights stay in their slot after the unload.
		w.wantMetrics("sim:slots_used{", "1.0")
	})
}

// vLLM has a lock for each adapter name. A call waits for the earlier calls for the same name and
// then sees their results.
func TestCallsForOneNameFollowEachOther(t *testing.T) {
	var log bytes.Buffer
	inWorld(t, Config{Profile: slow(), Events: NewEvents(&log, "192.0.2.1:8000")}, func(w *world) {
		statuses := make([]int, 4)
		var all sync.WaitGroup
		for i, call := range []struct{ path, body string }{
			{"/v1/load_lora_adapter", loadBody("x", "sim:rank=99")}, // fails immediately
			{"/v1/load_lora_adapter", loadBody("x", "sim:")},
			{"/v1/load_lora_adapter", loadBody("x", "sim:")},
			{"/v1/unload_lora_adapter", `{"lora_name":"x"}`},
		} {
			all.Go(func() {
				statuses[i] = w.post(call.path, call.body).status
				if i > 0 {
					w.at(2, "the answer")
				}
			})
			synctest.Wait()
		}
		all.Wait()
		if want := []int{500, 200, 400, 200}; !slices.Equal(statuses, want) {
			t.Errorf("they were answered %v, want %v", statuses, want)
		}
		w.wantMetrics("sim:host_loads_total{", "1.0")
		if got := w.do("GET /v1/models", "").get("data.#").Int(); got != 1 {
			t.Errorf("%d models are listed after the unload", got)
		}
	})
	const start = "2000-01-01T00:00:0" // start of synctest's clock
	for i, want := range []string{
		`0Z","engine":"192.0.2.1:8000","event":"load","model":"x"}`,
		`0Z","engine":"192.0.2.1:8000","event":"loaded","model":"x","error":"Call to add_lora method failed: Worker failed`,
		`0Z","engine":"192.0.2.1:8000","event":"load","model":"x"}`,
		`0Z","engine":"192.0.2.1:8000","event":"load","model":"x"}`,
		`0Z","engine":"192.0.2.1:8000","event":"unload","model":"x"}`,
		`2Z","engine":"192.0.2.1:8000","event":"loaded","model":"x","seconds":2}`,
		`2Z","engine":"192.0.2.1:8000","event":"loaded","model":"x","error":"The lora adapter 'x' has already been loaded.`,
		`2Z","engine":"192.0.2.1:8000","event":"unloaded","model":"x","seconds":2}`,
	} {
		if line, _ := log.ReadString('\n'); !strings.HasPrefix(line, `{"time":"`+start+want) {
			t.Errorf("event %d is %swant %s", i, line, want)
		}
	}
}

func TestLoadGoesOnWhenItsClientLeaves(t *testing.T) {
	inWorld(t, Config{Profile: slow()}, func(w *world) {
		ctx, leave := context.WithTimeout(context.Background(), time.Second)
		defer leave()
		if resp, err := w.send(ctx, "POST /v1/load_lora_adapter", loadBody("x", "sim:")); err == nil {
			w.close(resp)
			t.Fatal("the load took less than a second")
		}
		if a := w.post("/v1/completions", ask4("x", 1)); a.status != http.StatusNotFound {
			t.Errorf("a request during the load: %d", a.status)
		}
		time.Sleep(1100 * time.Millisecond)
		if a := w.post("/v1/completions", ask4("x", 1)); a.status != http.StatusOK {
			t.Errorf("a request after the load: %d", a.status)
		}
	})
}

func TestEngineWithoutSlotsRefusesAdapters(t *testing.T) {
	p := slow()
	p.Limits.GPUAdapters, p.Limits.HostAdapters = 0, 0
	inWorld(t, Config{Profile: p}, func(w *world) {
		a := w.post("/v1/load_lora_adapter", loadBody("x", "sim:"))
		if a.status != http.StatusInternalServerError || a.get("error.type").Str != "InternalServerError" {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}
