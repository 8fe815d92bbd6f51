package loader

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// An engine with an agent is managed only through the agent: loads, unloads, the list of models and
// the question whether the engine is stopping.
func TestAdaptersAreManagedThroughTheAgent(t *testing.T) {
	for kind, path := range map[engine.Kind]string{engine.VLLM: "/v1/load_lora_adapter", engine.SGLang: "/load_lora_adapter"} {
		var direct atomic.Int64
		served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { direct.Add(1); http.NotFound(w, r) }))
		defer served.Close()
		f := &fake{status: http.StatusOK, owner: string(kind), list: []string{"m"}}
		agent := httptest.NewServer(f)
		defer agent.Close()
		engineAt := served.Listener.Addr().String()
		l := openFor(t, served, Endpoint{Kind: kind, HTTP: engineAt, Management: agent.Listener.Addr().String()}, engineclient.Access{})
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		if seen, err := l.driver.Scrape(ctx, Record{}); err != nil || !seen.Takes || !slices.Contains(seen.Models, Listed{ID: "m"}) {
			t.Errorf("%s: a scrape returns %+v, %v", kind, seen, err)
		}
		if _, err := l.driver.Load(ctx, Model{ID: "m", Source: "s3://b/m"}); err != nil {
			t.Errorf("%s: a load: %v", kind, err)
		}
		f.mu.Lock()
		f.list = []string{}
		f.mu.Unlock()
		if err := l.driver.Unload(ctx, "m"); err != nil {
			t.Errorf("%s: an unload: %v", kind, err)
		}
		if n := direct.Load(); n != 0 || len(f.calls) < 2 || f.calls[0] != path+` {"lora_name":"m","lora_path":"s3://b/m"}` {
			t.Errorf("%s: the engine got %d calls of its own, and the agent %q", kind, n, f.calls)
		}
	}
}

// The agent gets the storage of a model. An engine gets no field that it does not have.
func TestAgentGetsTheStorageOfAModel(t *testing.T) {
	const plain = `/v1/load_lora_adapter {"lora_name":"m","lora_path":"s"}`
	for _, row := range []struct{ info, want string }{
		{"", plain},
		{"an opaque key", plain},
		{`{"disk_size_bytes":4000}`, plain},
		{`{"storage_key":"k"}`, `/v1/load_lora_adapter {"lora_name":"m","lora_path":"s","storage":"{\"storage_key\":\"k\"}"}`},
		{
			`{"storage_params":{"include":"*.json"}}`,
			`/v1/load_lora_adapter {"lora_name":"m","lora_path":"s","storage":"{\"storage_params\":{\"include\":\"*.json\"}}"}`,
		},
	} {
		f := &fake{status: http.StatusOK, list: []string{"m"}}
		server := httptest.NewServer(f)
		defer server.Close()
		l := openFor(t, server, Endpoint{Kind: engine.VLLM}, engineclient.Access{})
		if _, err := l.driver.Load(t.Context(), Model{ID: "m", Source: "s", Info: row.info}); err != nil {
			t.Errorf("%s: %v", row.info, err)
		}
		if !slices.Equal(f.calls, []string{row.want}) {
			t.Errorf("%s: the calls are %q, want %q", row.info, f.calls, row.want)
		}
	}
}

// The kind selects the driver. A management address alone means a model runtime.
func TestDriverOfAKind(t *testing.T) {
	const at = "127.0.0.1:1"
	for _, row := range []struct {
		kind       engine.Kind
		management string
		want       string
	}{
		{"", "", "*loader.adapters"},
		{"", at, "*loader.modelRuntime"},
		{engine.ModelRuntime, at, "*loader.modelRuntime"},
		{engine.VLLM, "", "*loader.adapters"},
		{engine.VLLM, at, "*loader.adapters"},
		{engine.SGLang, at, "*loader.adapters"},
		{engine.TorchServe, at, "*loader.torchServe"},
		{engine.MLServer, "", "*loader.modelRepository"},
	} {
		l, err := Open(Endpoint{Address: at, Kind: row.kind, Management: row.management}, engineclient.Access{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%T", l.driver); got != row.want {
			t.Errorf("%q, managed at %q: the driver is %s, want %s", row.kind, row.management, got, row.want)
		}
		_ = l.Close()
	}
}
