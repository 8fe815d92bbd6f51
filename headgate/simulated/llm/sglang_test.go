package llm

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/engine"
)

// The expected answers come from SGLang's documentation: no real SGLang was recorded.
func TestSGLangLoadsUnloadsAndListsAdapters(t *testing.T) {
	inWorld(t, Config{Profile: slow(), Kind: engine.SGLang}, func(w *world) {
		for _, step := range []struct {
			path, body string
			status     int
			want       string
		}{
			{"/load_lora_adapter", loadBody("x", "sim:"), http.StatusOK, `{"success":true,"loaded_adapters":{"x":"sim:"}}`},
			{
				"/load_lora_adapter", loadBody("x", "sim:"), http.StatusBadRequest,
				`{"success":false,"error_message":"the adapter \"x\" is already loaded","loaded_adapters":{"x":"sim:"}}`,
			},
			{
				"/load_lora_adapter", loadBody("y", "/none"), http.StatusBadRequest,
				`{"success":false,"error_message":"Loading lora y failed: No adapter found for /none","loaded_adapters":{"x":"sim:"}}`,
			},
			{
				"/load_lora_adapter", `{"lora_name":"y"}`, http.StatusBadRequest,
				`{"success":false,"error_message":"lora_name and lora_path are needed","loaded_adapters":{"x":"sim:"}}`,
			},
			{"/v1/load_lora_adapter", loadBody("y", "sim:"), http.StatusNotFound, `{"detail":"Not Found"}`},
		} {
			if a := w.post(step.path, step.body); a.status != step.status || a.body != step.want {
				t.Errorf("%s %s: %d %s, want %d %s", step.path, step.body, a.status, a.body, step.status, step.want)
			}
		}
		w.at(2, "one load")
		list, err := engine.ReadModels([]byte(w.do("GET /v1/models", "").body))
		if want := (engine.Models{Kind: engine.SGLang, Base: []string{"base"}, Adapters: []string{"x"}, MaxLength: 4096}); err != nil ||
			!cmp.Equal(list, want) {
			t.Errorf("the list is %+v, %v, want %+v", list, err, want)
		}
		for model, want := range map[string]int{"base:x": 200, "x": 200, "base": 200, "base:y": 404} { // the base model answers for x
			if a := w.post("/v1/completions", ask4(model, 1)); a.status != want {
				t.Errorf("a request for %s: %d %s", model, a.status, a.body)
			}
		}
		for _, status := range []int{http.StatusOK, http.StatusBadRequest} {
			if a := w.post("/unload_lora_adapter", `{"lora_name":"x"}`); a.status != status || a.get("loaded_adapters").Raw != "{}" {
				t.Errorf("an unload: %d %s, want %d", a.status, a.body, status)
			}
		}
	})
}

func TestSGLangsMetricsAreReadAsSGLangs(t *testing.T) {
	inWorld(t, Config{Profile: slow(), Kind: engine.SGLang}, func(w *world) {
		var reader engine.Reader
		load, err := reader.Load([]byte(w.do("GET /metrics", "").body), "")
		none := engine.Timed{Count: engine.Known(0), Seconds: engine.Known(0)}
		want := engine.Load{
			Kind: engine.SGLang, Running: engine.Known(0), Waiting: engine.Known(0), KVUsage: engine.Known(0),
			KVTokens: engine.Known(16384 * 16), MaxAdapters: engine.Known(2),
			Totals: engine.Totals{
				Queue: none, FirstToken: none, InterToken: none, PromptTokens: engine.Known(0), CachedTokens: engine.Known(0),
				GeneratedTokens: engine.Known(0),
			},
		}
		if err != nil || !cmp.Equal(load, want, cmp.AllowUnexported(engine.Value{})) {
			t.Errorf("%+v, %v, want %+v", load, err, want)
		}
	})
}

func TestUnknownKindOfEngine(t *testing.T) {
	if _, err := New(Config{Kind: "abacus"}); err == nil {
		t.Error("no error")
	}
}
