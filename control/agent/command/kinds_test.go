package command

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/headgate/simulated/repository"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/listen"
)

// claim makes a folder with mounted claims. The claim "c" has a folder for each model, with files.
func claim(t *testing.T, models map[string]map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for model, files := range models {
		for name, text := range files {
			at := filepath.Join(dir, "c", model, name)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// loraEngine is a vLLM that loads adapters from folders.
type loraEngine struct {
	mu       sync.Mutex
	adapters map[string]string // path by name
	keys     []string          // Authorization of each load
}

func (e *loraEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var call struct {
		Name string `json:"lora_name"`
		Path string `json:"lora_path"`
	}
	_ = json.NewDecoder(r.Body).Decode(&call)
	switch r.URL.Path {
	case "/v1/models":
		list := []string{`{"id":"base","object":"model","owned_by":"vllm"}`}
		for name := range e.adapters {
			list = append(list, fmt.Sprintf(`{"id":%q,"object":"model","owned_by":"vllm","parent":"base"}`, name))
		}
		_, _ = io.WriteString(w, `{"object":"list","data":[`+strings.Join(list, ",")+`]}`)
	case "/v1/load_lora_adapter":
		e.keys = append(e.keys, r.Header.Get("Authorization"))
		if _, err := os.Stat(filepath.Join(call.Path, "adapter_config.json")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		e.adapters[call.Name] = call.Path
		_, _ = io.WriteString(w, "Success: LoRA adapter '"+call.Name+"' added successfully.")
	case "/v1/unload_lora_adapter":
		delete(e.adapters, call.Name)
		_, _ = io.WriteString(w, "Success: LoRA adapter '"+call.Name+"' removed successfully.")
	default:
		http.NotFound(w, r)
	}
}

// An adapter in storage is loaded onto a vLLM from a local folder, and callers need the token.
func TestAdaptersOfVLLM(t *testing.T) {
	served := &loraEngine{adapters: make(map[string]string)}
	server := httptest.NewServer(served)
	t.Cleanup(server.Close)
	models, address := t.TempDir(), freeAddress(t)
	secrets := claim(t, map[string]map[string]string{"": {"token": "secret-token\n", "key": "engine-key"}})
	claims := claim(t, map[string]map[string]string{"sql": {
		"adapter_config.json": `{"r":8,"peft_type":"LORA"}`, "adapter_model.safetensors": "weights",
	}})
	newAgent(t, fmt.Sprintf("--kind vllm --engine %s --management %s --models-dir %s --pvc-dir %s --token-file %s --engine-key-file %s",
		server.Listener.Addr(), address, models, claims, filepath.Join(secrets, "c", "token"), filepath.Join(secrets, "c", "key")))
	call := func(method, path, body, token string) (code int, text string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := server.Client().Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer answer.Body.Close()
		read, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(read)
	}
	until(t, "the agent serves", func() bool {
		code, _ := call(http.MethodGet, "/v1/models", "", "secret-token")
		return code == http.StatusOK
	})
	const load = `{"lora_name":"sql","lora_path":"pvc://c/sql"}`
	for _, c := range []struct {
		method, path, body, token string
		code                      int
	}{
		{http.MethodGet, "/v1/models", "", "", http.StatusUnauthorized},
		{http.MethodPost, "/v1/load_lora_adapter", load, "other", http.StatusUnauthorized},
		{http.MethodPost, "/v1/chat/completions", "{}", "secret-token", http.StatusNotFound},
		{http.MethodPost, "/v1/load_lora_adapter", load, "secret-token", http.StatusOK},
	} {
		if code, text := call(c.method, c.path, c.body, c.token); code != c.code {
			t.Errorf("%s %s with the token %q: %d, want %d: %s", c.method, c.path, c.token, code, c.code, text)
		}
	}
	served.mu.Lock()
	if at := served.adapters["sql"]; !strings.HasPrefix(at, models) || !slices.Equal(served.keys, []string{"Bearer engine-key"}) {
		t.Errorf("the adapter is loaded from %q, with the keys %q", at, served.keys)
	}
	served.mu.Unlock()
	if code, text := call(http.MethodPost, "/v1/unload_lora_adapter", `{"lora_name":"sql"}`, "secret-token"); code != http.StatusOK {
		t.Errorf("the unload: %d: %s", code, text)
	}
	if len(served.adapters) > 0 {
		t.Errorf("the engine has %q", served.adapters)
	}
	until(t, "no folder is left", func() bool { return len(folders(t, models)) == 0 })
}

// listServer is an OpenVINO Model Server: it reads a file of models when it is asked to.
type listServer struct {
	file string

	mu     sync.Mutex // guards list
	list   map[string]string
	failed error
}

func (s *listServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPost {
		text, err := os.ReadFile(s.file)
		if err == nil {
			s.list, err = engine.ReadOVMSModelList(text)
		}
		s.failed = err
		w.WriteHeader(http.StatusCreated)
	}
	all := make(map[string]any)
	for name := range s.list {
		all[name] = map[string]any{"model_version_status": []any{map[string]any{
			"version": "1", "state": "AVAILABLE", "status": map[string]string{"error_code": "OK", "error_message": "OK"},
		}}}
	}
	_ = json.NewEncoder(w).Encode(all)
}

// Models returns the models on the list.
func (s *listServer) Models() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.list))
}

// A driven engine gets each model in its own layout, from the folder that the agent makes. Nothing
// is left of a model after its unload.
func TestDrivenEngines(t *testing.T) {
	onnx, joblib := map[string]string{"model.onnx": "weights"}, map[string]string{"model.joblib": "weights"}
	for _, c := range []struct {
		kind                    engine.Kind
		protocol, model, format string
		files                   map[string]string
		laidOut                 string // a file or folder of the layout
		loads                   int
		method                  string // one of methodInfos
		bytes                   int64
		serve                   func(context.Context, *repository.Server, net.Listener) error
	}{
		{
			engine.Triton, "grpc", "on", "onnx", onnx, "_triton_models/m/1", 2,
			"inference.GRPCInferenceService/ModelInfer 1", 8, repository.ServeGRPC,
		},
		{
			engine.MLServer, "grpc", "sk", "sklearn", joblib, "_mlserver_models/m/model-settings.json", 1,
			"inference.GRPCInferenceService/ModelInfer 1", 8, repository.ServeGRPC,
		},
		{
			engine.MLServer, "http", "sk", "sklearn", joblib, "_mlserver_models/m/model-settings.json", 1,
			"inference.GRPCInferenceService/ModelMetadata 1", 8, repository.Serve,
		},
		{
			engine.TorchServe, "grpc", "ts/x.mar", "pytorch-mar",
			map[string]string{"x.mar": "PK\x03\x04abc"},
			"_torchserve_models/m.mar", 1,
			"org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions 1", 19, repository.Serve,
		},
		{
			engine.TFServing, "grpc", "tf", "tensorflow",
			map[string]string{"saved_model.pb": "weights"},
			"_tfserving_models/m/1", 1,
			"tensorflow.serving.PredictionService/Predict 1.1", 8, repository.Serve,
		},
		{engine.OVMS, "grpc", "on", "onnx", onnx, "_ovms_models/m/1", 1, "tensorflow.serving.PredictionService/Predict 1.1", 8, nil},
	} {
		t.Run(string(c.kind)+"/"+c.protocol, func(t *testing.T) {
			t.Parallel()
			models, address := t.TempDir(), freeAddress(t)
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var served interface{ Models() []string }
			if c.serve == nil {
				own := &listServer{file: filepath.Join(models, "model_config_list.json")}
				server := &http.Server{Handler: own, ReadHeaderTimeout: testTimeout}
				go func() { _ = server.Serve(l) }()
				t.Cleanup(func() { _ = server.Close() })
				served = own
			} else {
				own := repository.New(repository.Config{Kind: c.kind, Models: map[string]repository.Model{"m": {}}})
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- c.serve(ctx, own, l) }()
				t.Cleanup(func() {
					cancel()
					if err := <-done; err != nil {
						t.Error(err)
					}
				})
				served = own
			}
			folder, _, _ := strings.Cut(c.model, "/")
			claims := claim(t, map[string]map[string]string{folder: c.files})
			newAgent(t, fmt.Sprintf("--kind %s --engine %s --engine-protocol %s --management %s --models-dir %s --pvc-dir %s "+
				"--memory-request 1Gi", c.kind, l.Addr(), c.protocol, address, models, claims))
			control := newControl(t, address)
			control.look()
			limits := control.record.Limits
			if limits.Bytes != 1<<30-128<<20 || limits.Loads != c.loads || limits.DefaultBytes != 1_000_000 ||
				!strings.Contains(string(limits.Methods), c.method) {
				t.Errorf("the engine reports %+v", limits)
			}
			m := loader.Model{ID: "m", Type: c.format, Source: "pvc://c/" + c.model}
			loaded, err := control.loader.Load(t.Context(), m, testTimeout)
			if err != nil || loaded.Bytes != c.bytes {
				t.Errorf("the load: %+v, %v", loaded, err)
			}
			if _, err := os.Stat(filepath.Join(models, c.laidOut)); err != nil {
				t.Error(err)
			}
			if got := served.Models(); !slices.Equal(got, []string{"m"}) {
				t.Errorf("the engine has %q", got)
			}
			_, err = control.loader.Load(t.Context(), loader.Model{ID: "n", Source: "pvc://c/nowhere"}, testTimeout)
			if err == nil || !strings.Contains(err.Error(), "pvc://c/nowhere") {
				t.Errorf("a load of a model that is not there: %v", err)
			}
			if err := control.loader.Unload(t.Context(), "m"); err != nil {
				t.Error(err)
			}
			got := append(served.Models(), folders(t, models)...)
			if len(got) > 0 && !slices.Equal(got, []string{"model_config_list.json"}) {
				t.Errorf("models or folders %q are left", got)
			}
			if _, err := os.Stat(filepath.Join(models, c.laidOut)); err == nil {
				t.Error("the layout is left")
			}
		})
	}
}

// With a certificate, management takes gRPC over TLS, with the pool's token.
func TestManagementOverTLS(t *testing.T) {
	pair, err := listen.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	dir := filepath.Join(claim(t, map[string]map[string]string{"tls": {
		"tls.crt": text("CERTIFICATE", pair.Certificate[0]), "tls.key": text("PRIVATE KEY", key), "token": "secret-token",
	}}), "c", "tls")
	runtime, address := newRuntime(t), freeAddress(t)
	newAgent(t, fmt.Sprintf("--kind modelruntime --engine unix:%s --management %s --models-dir %s --cert-path %s --token-file %s",
		runtime.address, address, t.TempDir(), dir, filepath.Join(dir, "token")))
	tokens := engineclient.NewTokens(nil)
	if _, err := tokens.Set("pool", []byte("secret-token")); err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"pool", ""} {
		e := loader.Endpoint{
			Address: "127.0.0.1:1", Management: address, Token: token,
			TLS: v1alpha1.EngineTLS{CACertificates: text("CERTIFICATE", pair.Certificate[0]), Hostname: "headgate"},
		}
		l, err := loader.Open(e, engineclient.Access{Tokens: tokens}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		if token == "" {
			if _, err := l.Scrape(t.Context(), loader.Record{}); err == nil || !strings.Contains(err.Error(), "Unauthenticated") {
				t.Errorf("without a token: %v", err)
			}
			continue
		}
		until(t, "the agent answers over TLS", func() bool {
			seen, err := l.Scrape(t.Context(), loader.Record{})
			return err == nil && seen.Purged && strings.HasPrefix(seen.Incarnation, loader.LifePrefix)
		})
	}
	if runtime.purges != 1 {
		t.Errorf("%d purges, want 1", runtime.purges)
	}
}
