package stream_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// emptied removes the endpoints of ns/base. The function that it returns brings them back.
func emptied(f *fleet.Fleet) (filled func()) {
	with := f.View().World
	f.SetWorld(withoutEndpoint(with, *with.Pools[objects.Name{Namespace: "ns", Name: "base"}]))
	return func() {
		f.SetWorld(with)
		f.Scrape(address).Succeeded(engine.Load{})
		f.SetModels(address, engine.Models{Base: []string{"llama"}, Adapters: []string{"sql-v2"}})
		f.SetWorld(with) // publishes a new view
	}
}

// Requests to an empty pool wait as long as timeouts.empty says, whether it is shorter or longer
// than the other timeout, and however many wait before them. Unknown models are refused at once.
func TestEmptyPoolHoldsRequests(t *testing.T) {
	for name, c := range map[string]struct{ empty, queue, want time.Duration }{
		"shorter": {10 * time.Second, time.Minute, 9 * time.Second},
		"longer":  {150 * time.Second, time.Minute, 149 * time.Second},
		"none":    {0, time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, held, client := window(t, 0, func(s *stream.Config) {
					s.Settings.EmptyTimeout, s.Settings.QueueTimeout = c.empty, c.queue
				})
				emptied(f)
				began := time.Now()
				var waiting []extprocv3.ExternalProcessor_ProcessClient
				for _, model := range []string{"llama", "text-to-sql", "gpt-4", "llama", "llama"} {
					s, m := askFor(t.Context(), t, client, model)
					if c.empty == 0 {
						if got := render(t, m); !strings.Contains(got, "reply: 503") {
							t.Errorf("%s gets %s", model, got)
						}
						continue
					}
					waiting = append(waiting, s)
					awaitQueued(t, held, int64(len(waiting)))
				}
				if _, m := askFor(t.Context(), t, client, "unheard-of"); !strings.Contains(render(t, m), "reply: 404") {
					t.Errorf("an unknown model gets %s", render(t, m))
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("the requests were sent within %v", took)
				}
				for _, s := range waiting {
					if got := decided(t, s); !strings.Contains(got, "reply: 503") || !strings.Contains(got, "retry-after=") {
						t.Errorf("after its time it gets %s", got)
					}
				}
				if took := time.Since(began); took < c.want || took > c.want+2*time.Second {
					t.Errorf("they waited %v, want %v", took, c.want)
				}
				awaitQueued(t, held, 0)
			})
		})
	}
}

// The first endpoint of an empty pool gets only what it can start at once.
func TestFirstEndpointGetsWhatItCanStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, held, client := window(t, 4, func(s *stream.Config) { s.Settings.EmptyTimeout = time.Minute })
		filled := emptied(f)
		for i := range 8 {
			askFor(t.Context(), t, client, "llama")
			awaitQueued(t, held, int64(i+1))
		}
		filled()
		time.Sleep(5 * time.Second)
		if n, _ := held.Queued(); inFlight(f) < 1 || inFlight(f) > 4 || n != 8-inFlight(f) {
			t.Errorf("%d requests are in flight, and %d wait", inFlight(f), n)
		}
	})
}

// Requests that waited for the first endpoint longer than timeouts.queue may then wait for room as
// long as that timeout says: those that were tried and those that wait behind them.
func TestRequestsWaitForRoomAfterAPoolWasEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, held, client := window(t, 1, func(s *stream.Config) {
			s.Settings.EmptyTimeout, s.Settings.QueueTimeout = 150*time.Second, 60*time.Second
		})
		filled := emptied(f)
		var waiting []extprocv3.ExternalProcessor_ProcessClient
		for i := range 4 {
			s, _ := askFor(t.Context(), t, client, "llama")
			waiting = append(waiting, s)
			awaitQueued(t, held, int64(i+1))
		}
		time.Sleep(80 * time.Second)
		filled()
		next(t, "the first one after 80 s", waiting[0])
		time.Sleep(55 * time.Second)
		if n, _ := held.Queued(); n != 3 {
			t.Errorf("%d wait for room after 55 s more", n)
		}
		filledAt := time.Now().Add(-55 * time.Second)
		for _, s := range waiting[1:] {
			if got := decided(t, s); !strings.Contains(got, "reply: 504") {
				t.Errorf("after its time it gets %s", got)
			}
		}
		if took := time.Since(filledAt); took > 61*time.Second {
			t.Errorf("they waited %v for room", took)
		}
		awaitQueued(t, held, 0)
	})
}

// A data plane is asked to wait for an endpoint and then for room, but no longer than the longest
// queue timeout of this process allows.
func TestTimeoutOfRequestsToAnEmptyPool(t *testing.T) {
	for name, c := range map[string]struct{ queue, empty, flag, want time.Duration }{
		"both":            {time.Minute, 150 * time.Second, 5 * time.Minute, 210 * time.Second},
		"limited":         {time.Minute, 150 * time.Second, 3 * time.Minute, 3 * time.Minute},
		"small":           {time.Minute, 150 * time.Second, time.Minute, 150 * time.Second},
		"beyond Envoy's":  {time.Minute, 10 * time.Minute, time.Minute, 5 * time.Minute},
		"beyond the flag": {10 * time.Minute, 10 * time.Minute, 6 * time.Minute, 6 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleetWith(fleet.Config{}, func(s *objects.Set) {
					base := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "base"}}
					base.Spec.PoolRef.Name = "base"
					base.Spec.Timeouts = &v1alpha1.PoolTimeouts{
						Queue: &metav1.Duration{Duration: c.queue}, Empty: &metav1.Duration{Duration: c.empty},
					}
					s.Settings = append(s.Settings, base)
				})
				held := flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20, Alone: true})
				server, _ := newServer(t, f, func(s *stream.Config) { s.Flow, s.Settings.QueueTimeout = held, c.flag })
				emptied(f)
				_, m := askFor(t.Context(), t, dialServer(t, server, stream.Own), "llama")
				if got := m.GetOverrideMessageTimeout().AsDuration(); got != c.want {
					t.Errorf("it is asked to wait %v, want %v", got, c.want)
				}
			})
		})
	}
}

// A request for a model that no endpoint of its pool may load waits like one in an empty pool. When
// an endpoint may load it, the request waits for the load.
func TestModelThatNoEndpointMayLoad(t *testing.T) {
	failed := func(f *fleet.Fleet, reason string) {
		n := endpointstate.PlacementUpdate{Failures: map[objects.ModelKey]string{nobody: reason}}
		f.ApplyPlacement(n)
	}
	start := func(t *testing.T, empty time.Duration) (*fleet.Fleet, *flow.Flow, extprocv3.ExternalProcessorClient) {
		f, held, server := queueingServer(t, time.Minute, 100)
		server.Settings.EmptyTimeout = empty
		failed(f, wire.NoLabels)
		return f, held, dialServer(t, server, stream.Own)
	}
	t.Run("at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, _, client := start(t, 0)
			if _, m := ask(t.Context(), t, client); !strings.Contains(render(t, m), "reply: 503") {
				t.Errorf("it gets %s", render(t, m))
			}
		})
	})
	t.Run("time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, held, client := start(t, 10*time.Second)
			began := time.Now()
			for range 2 {
				s, _ := ask(t.Context(), t, client)
				defer func() {
					if got := decided(t, s); !strings.Contains(got, "reply: 503") || !strings.Contains(got, "retry-after=") {
						t.Errorf("after its time it gets %s", got)
					}
					if took := time.Since(began); took > 10*time.Second {
						t.Errorf("it waited %v", took)
					}
				}()
			}
			awaitQueued(t, held, 2)
		})
	})
	t.Run("loaded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, held, client := start(t, 10*time.Second)
			s, _ := ask(t.Context(), t, client)
			awaitQueued(t, held, 1)
			failed(f, "") // an endpoint may load it now
			time.Sleep(30 * time.Second)
			if n, _ := held.Queued(); n != 1 {
				t.Errorf("%d requests wait for the load", n)
			}
			f.ApplyPlacement(news(t, f, []string{"loaded=nobody@" + address}))
			next(t, "the waiting request", s)
			awaitQueued(t, held, 0)
		})
	})
	t.Run("deleted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, held, client := start(t, 10*time.Second)
			s, _ := ask(t.Context(), t, client)
			awaitQueued(t, held, 1)
			failed(f, wire.UnknownModel)
			if got := decided(t, s); !strings.Contains(got, "reply: 404") {
				t.Errorf("it gets %s", got)
			}
			awaitQueued(t, held, 0)
		})
	})
}
