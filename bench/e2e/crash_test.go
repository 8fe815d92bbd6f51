package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/rig"
)

var crashes = flag.Int("crashes", 1, "kill each engine so many times")

// victim is an engine that a test kills and restarts.
type victim struct {
	address     string
	kill, start func()
}

// placedView is the part of control's /placement that the tests read.
type placedView struct {
	Endpoints []struct {
		Address, State string
		LeakedBytes    int64
		Copies         []struct{ ID, State string }
	}
}

// placement reads /placement from control.
func (s *stack) placement() (v placedView) {
	s.t.Helper()
	response, err := s.client.Get("http://" + s.ControlMetrics + "/placement")
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&v); err != nil || response.StatusCode != http.StatusOK {
		s.t.Fatalf("/placement: %d, %v", response.StatusCode, err)
	}
	return v
}

// copiesAt returns the names of the models that are loaded at an endpoint.
func (s *stack) copiesAt(address string) (ids []string) {
	for _, e := range s.placement().Endpoints {
		for _, c := range e.Copies {
			if e.Address == address && c.State == "loaded" {
				ids = append(ids, c.ID)
			}
		}
	}
	return ids
}

// crash kills the engines one after the other while calls are in flight, and makes control unload a
// model from each dead engine. No room may leak, and in the end every model must answer. There must
// be more models than fit. infer makes one call.
func (s *stack) crash(victims []victim, models []string, infer func(ctx context.Context, model string) error) {
	client := s.mesh()
	register := func(model string) {
		s.t.Helper()
		if _, err := client.RegisterModel(s.t.Context(),
			&mmesh.RegisterModelRequest{ModelId: model, ModelInfo: &mmesh.ModelInfo{Type: "any", Path: "sim:"}}); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, model := range models {
		register(model)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	var clients sync.WaitGroup
	var sent, failed atomic.Int64
	for range 2 {
		clients.Go(func() {
			for ctx.Err() == nil {
				limited, end := context.WithTimeout(ctx, 5*time.Second)
				err := infer(limited, models[rand.IntN(len(models))])
				end()
				if sent.Add(1); err != nil && ctx.Err() == nil {
					failed.Add(1)
					if strings.Contains(err.Error(), "larger than") {
						s.t.Error(err)
					}
				}
				select {
				case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond): // each client makes about a hundred calls per second
				case <-ctx.Done():
				}
			}
		})
	}
	for range *crashes {
		for _, v := range victims {
			before := sent.Load() - failed.Load()
			s.awaitWithin(time.Minute, "calls are answered, and "+v.address+" has a model", func() bool {
				return sent.Load()-failed.Load() >= before+5 && len(s.copiesAt(v.address)) > 0
			})
			v.kill()
			was := s.copiesAt(v.address)
			for _, model := range was {
				if _, err := client.UnregisterModel(s.t.Context(), &mmesh.UnregisterModelRequest{ModelId: model}); err != nil {
					s.t.Fatal(err)
				}
			}
			s.awaitWithin(time.Minute, "control has given up to unload its models", func() bool {
				for _, e := range s.placement().Endpoints {
					if e.Address == v.address {
						return len(e.Copies) == 0
					}
				}
				return false
			})
			v.start()
			for _, model := range was {
				register(model)
			}
		}
	}
	cancel()
	clients.Wait()
	s.t.Logf("%d calls during %d kills, %d of them failed", sent.Load(), *crashes*len(victims), failed.Load())
	noneLost := func() bool {
		for _, e := range s.placement().Endpoints {
			if e.LeakedBytes > 0 || e.State != "ready" && e.State != "doubtful" {
				return false
			}
		}
		return true
	}
	s.awaitWithin(time.Minute, "control has found each engine with all of its room", noneLost)
	for _, model := range models {
		// Control may know of the engine a little before extproc, which then refuses a call.
		s.awaitWithin(time.Minute, model+" answers", func() bool {
			limited, end := context.WithTimeout(s.t.Context(), time.Minute)
			defer end()
			err := infer(limited, model)
			if err != nil && status.Code(err) != codes.Unavailable {
				s.t.Errorf("%s: %v", model, err)
			}
			return err == nil
		})
	}
	s.awaitWithin(time.Minute, "no room is lost", noneLost)
}

// Model runtimes die while control unloads models from them. One runtime is managed over TCP, one
// over a socket, and one runs in a pod. Each has room for one of four models.
func TestRuntimesThatDieLoseNoRoom(t *testing.T) {
	runs(t, raced)
	for kind, management := range map[string]string{"tcp": "port:8085", "socket": "unix:%s/runtime.sock", "pod": "port:8085"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var describe func(s *stack, life int) string
			s := start(t, runtimes(t, 0, nil), standalone, func(c *rig.Config) {
				c.EngineFlags = []string{"--capacity", "1Mi", "--default-size", "1Mi"}
				net, at := strings.TrimSuffix(c.Listen, "1:8080"), strings.ReplaceAll(management, "%s", c.Dir)
				describe = func(_ *stack, life int) string {
					pool, _, _ := strings.Cut(engines(net, 0), "---")
					if kind != "pod" {
						return pool +
							fmt.Sprintf("---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: runtime, labels: {app: llama, %s: 'true'}}\n"+
								"spec: {addresses: ['%s11:8000'], engine: modelruntime, management: '%s'}\n", rig.SimulateLabel, net, at)
					}
					return pool +
						fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: runtime, labels: {app: llama, %s: 'true'}}\n"+
							"status: {podIP: %s11, containerStatuses: [{name: runtime, containerID: 'containerd://%d'}]}\n",
							rig.SimulateLabel, net, life)
				}
				settings := fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: pool}\nspec: {poolRef: {name: pool}, placement: {management: '%s'}}\n", at)
				if kind != "pod" {
					settings = ""
				}
				for file, text := range map[string]string{"engines.yaml": describe(nil, 0), "settings.yaml": settings} {
					if err := os.WriteFile(filepath.Join(c.Objects, file), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			})
			address, life := s.endpoint(1), 0
			v := victim{address, func() { s.Engines[address].Kill() }, func() {
				if err := s.StartEngine(t.Context(), address); err != nil {
					t.Fatal(err)
				}
				if life++; kind == "pod" {
					s.write("engines.yaml", describe(s, life))
				}
			}}
			calls := s.calls()
			s.crash([]victim{v}, []string{"m1", "m2", "m3", "m4"}, func(ctx context.Context, model string) error {
				_, err := calls.ModelInfer(ctx, tensor(model, 1))
				return err
			})
		})
	}
}

// A runtime that has a model returns NOT_FOUND with the message that other runtimes use for a
// missing model. The model itself produced this response, so it must reach the client.
func TestAnswerThatSoundsLikeAMissingModelReachesTheClient(t *testing.T) {
	runs(t, raced)
	s := start(t, runtimes(t, 1, map[string]string{"odd": "sim:?refuse=NOT_FOUND:Model%20odd%20not%20found"}), standalone,
		func(c *rig.Config) { c.EngineFlags = nil })
	calls := s.calls()
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err := calls.ModelInfer(ctx, tensor("odd", 1))
		cancel()
		if is := status.Convert(err); is.Code() != codes.NotFound || is.Message() != "Model odd not found" {
			t.Errorf("call %d: %v", i, err)
		}
		// Until extproc has read Envoy's record of a call, it takes the next such answer for a
		// missing model.
		s.await("the call is counted", func() bool { return s.sum(s.Metrics, "headgate_requests_total") == float64(i+1) })
	}
	if loads := count(s.events(), "load"); loads > 4 {
		t.Errorf("it was loaded %d times", loads)
	}
}
