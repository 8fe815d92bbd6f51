package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/rig"
)

// engined returns the picks without the relay, which may be the last pick.
func engined(picks string) string {
	all, _, _ := strings.Cut(picks, ",/")
	return all
}

// The only copy of a request's model is at an engine that has just died. Another engine answers
// when it has loaded the model. This is tested with a whole response and with a stream.
func TestRequestsForADeadEngineAreServedElsewhere(t *testing.T) {
	onBothPlanes(t, requestsForADeadEngineAreServedElsewhere)
}

func requestsForADeadEngineAreServedElsewhere(t *testing.T) {
	s := start(t, pods(t, 3), placed(t, 4, "a01", "a02"), loading(t, 0.3), extprocFlags("--scrape-interval", "6s", "--stale-after", "1h"),
		controlFlags("--scrape-interval", "6s"))
	for _, c := range []struct {
		model  string
		stream bool
	}{{"a01", false}, {"a02", true}} {
		if a := s.must(completion(c.model, 4, false)); a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", c.model, a.status, a.body)
		}
		copies := held(s.events())
		var victim string
		for at := range copies {
			if at.model == c.model {
				victim = at.engine
			}
		}
		s.Engines[victim].Kill()
		a := s.must(completion(c.model, 20, c.stream))
		if a.status != http.StatusOK || c.stream && !strings.Contains(a.body, "[DONE]") {
			t.Errorf("%s, whose engine has died: %d %s", c.model, a.status, a.body)
		}
		s.await("extproc counts it as nowhere", func() bool { return s.inFlight() == 0 })
		s.await("its refusal is counted", func() bool {
			return s.sum(s.Metrics, "headgate_endpoint_failures_total", "endpoint", victim, "kind", "unreached") > 0
		})
	}
}

// A runtime silently loses a model. A request for the model is answered when the model has been
// loaded again.
func TestMissingModelIsLoadedAgain(t *testing.T) {
	onBothPlanes(t, requestsThatMeetNoModelHaveItLoadedAgain, raced)
}

func requestsThatMeetNoModelHaveItLoadedAgain(t *testing.T) {
	s := start(t, runtimes(t, 1, map[string]string{"one": "sim:"}), func(c *rig.Config) { c.EngineFlags = nil })
	infer := func(when string) {
		t.Helper()
		a, err := s.calls().ModelInfer(t.Context(), tensor("one", 1))
		if fault := answers(a, err, "one", 1); fault != "" {
			t.Errorf("%s: %s", when, fault)
		}
	}
	infer("at first")
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimSuffix(s.endpoint(1), "8000")+"8085",
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := mmesh.NewModelRuntimeClient(conn).UnloadModel(t.Context(), &mmesh.UnloadModelRequest{ModelId: "one"}); err != nil {
		t.Fatal(err)
	}
	infer("after it was lost")
	loads := slices.DeleteFunc(s.events(), func(e engineEvent) bool { return e.Event != "loaded" })
	if len(loads) != 2 {
		t.Errorf("it was loaded %d times", len(loads))
	}
}

// A runtime may report a lost model in any words, again and again. A NOT_FOUND from a model itself
// causes few loads and reaches the client unchanged.
func TestRuntimeReportsALostModelInAnyWords(t *testing.T) {
	runs(t, raced)
	for name, says := range map[string]string{
		"its own":          "NOT_FOUND:no %s here",
		"none":             "NOT_FOUND:",
		"older Triton":     "UNAVAILABLE:Request for unknown model: '%s' is not found",
		"older MLServer":   "INVALID_ARGUMENT:Model %s not found",
		"newer MLServer":   "NOT_FOUND:Model %s not found",
		"today's Triton's": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, runtimes(t, 1, map[string]string{"one": "sim:", "own": "sim:?refuse=NOT_FOUND:no such row"}),
				func(c *rig.Config) {
					if c.EngineFlags = nil; says != "" {
						c.EngineFlags = []string{"--unknown-model", says}
					}
				})
			conn, err := grpc.NewClient("passthrough:///"+strings.TrimSuffix(s.endpoint(1), "8000")+"8085",
				grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			const lost = 4
			for i := range 1 + lost {
				for range 3 {
					a, err := s.calls().ModelInfer(t.Context(), tensor("one", 1))
					if fault := answers(a, err, "one", 1); fault != "" {
						t.Errorf("after it was lost %d times: %s", i, fault)
					}
				}
				if i == lost {
					break
				}
				if _, err := mmesh.NewModelRuntimeClient(conn).UnloadModel(t.Context(),
					&mmesh.UnloadModelRequest{ModelId: "one"}); err != nil {
					t.Fatal(err)
				}
			}
			const asked = 30
			for range asked {
				_, err := s.calls().ModelInfer(t.Context(), tensor("own", 1))
				if is := status.Convert(err); is.Code() != codes.NotFound || is.Message() != "no such row" {
					t.Errorf("the model's own answer is %v", err)
				}
			}
			loads, refused := make(map[string]int), 0
			for _, e := range s.events() {
				if e.Event == "loaded" {
					loads[e.Model]++
				}
				if e.Event == "refused" {
					refused++
				}
			}
			// Each request causes a load until the access log reports the first response. On a busy
			// machine that is a few requests. Without the report it would be all of them.
			if loads["one"] != 1+lost || loads["own"] > asked/3 || refused > asked+asked/3 {
				t.Errorf("of loads there were %v, and %d inferences of which the client sent %d", loads, refused, asked)
			}
		})
	}
}

// ModelMesh's clients register a model and send requests to it on the same port, with the token
// that control requires from them.
func TestModelMeshClientsUseOnePort(t *testing.T) {
	runs(t, raced)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, runtimes(t, 1, nil), standalone, extprocFlags("--mesh-token-file", token), func(c *rig.Config) { c.EngineFlags = nil })
	conn, err := grpc.NewClient("passthrough:///"+s.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mesh := mmesh.NewModelMeshClient(conn)
	ask := &mmesh.RegisterModelRequest{ModelId: "mine", ModelInfo: &mmesh.ModelInfo{Type: "sim", Path: "sim:"}, LoadNow: true, Sync: true}
	if _, err := mesh.RegisterModel(t.Context(), ask); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without the token: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer secret")
	is, err := mesh.RegisterModel(ctx, ask)
	if err != nil || is.GetStatus() != mmesh.ModelStatusInfo_LOADED {
		t.Fatalf("%v, %v", is, err)
	}
	a, err := s.calls().ModelInfer(t.Context(), tensor("mine", 1))
	if fault := answers(a, err, "mine", 1); fault != "" {
		t.Error(fault)
	}
}

// If a model has one copy, that copy's error reaches the client after one attempt. If a model has
// two copies, each is tried once.
func TestRejectedRequestsAreNotRepeated(t *testing.T) {
	onBothPlanes(t, rejectedRequestsAreNotRepeated)
}

func rejectedRequestsAreNotRepeated(t *testing.T) {
	s := start(t, runtimes(t, 2, map[string]string{
		"busy": "sim:?refuse=UNAVAILABLE:busy", "full": "sim:?refuse=RESOURCE_EXHAUSTED:full",
		// The errors of MLServer, Triton and TensorFlow Serving for an unknown version of a model
		// that they have.
		"mlserver":  "sim:?refuse=NOT_FOUND:Model mlserver with version 9 not found",
		"triton":    "sim:?refuse=NOT_FOUND:Request for unknown model: ''triton'' version 9 is not found",
		"tfserving": "sim:?refuse=NOT_FOUND:Servable not found for request: Specific(tfserving, 9)",
	}), func(c *rig.Config) { c.EngineFlags = nil })
	s.write("twice.yaml", modelObject("twice", "type: sim, source: 'sim:?refuse=UNAVAILABLE:busy', copies: {min: 2, max: 2}"))
	s.await("it is there twice", func() bool {
		n := 0
		for c := range held(s.events()) {
			if c.model == "twice" {
				n++
			}
		}
		return n == 2
	})
	for _, c := range []struct {
		model string
		code  codes.Code
		words string
		asked int
	}{
		{"busy", codes.Unavailable, "busy", 1},
		{"full", codes.ResourceExhausted, "full", 1},
		{"mlserver", codes.NotFound, "Model mlserver with version 9 not found", 1},
		{"triton", codes.NotFound, "Request for unknown model: 'triton' version 9 is not found", 1},
		{"tfserving", codes.NotFound, "Servable not found for request: Specific(tfserving, 9)", 1},
		{"twice", codes.Unavailable, "busy", 2},
	} {
		_, err := s.calls().ModelInfer(t.Context(), tensor(c.model, 1))
		if is := status.Convert(err); is.Code() != c.code || is.Message() != c.words {
			t.Errorf("%s: %v, want %v: %s", c.model, err, c.code, c.words)
		}
		asked := 0
		for _, e := range s.events() {
			if e.Event == "refused" && e.Model == c.model {
				asked++
			}
		}
		if asked != c.asked {
			t.Errorf("%s is asked %d times, want %d", c.model, asked, c.asked)
		}
	}
	s.write("settings.yaml", "apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: pool}\n"+
		"spec: {poolRef: {name: pool}, placement: {maxAdapters: 1, source: 'sim:'}, retry: {unavailable: false}}\n")
	refused := func() (n int) {
		for _, e := range s.events() {
			if e.Event == "refused" && e.Model == "twice" {
				n++
			}
		}
		return n
	}
	s.await("UNAVAILABLE is repeated nowhere", func() bool {
		before := refused()
		if _, err := s.calls().ModelInfer(t.Context(), tensor("twice", 1)); status.Convert(err).Message() != "busy" {
			t.Errorf("the answer is %v", err)
		}
		return refused() == before+1
	})
}
