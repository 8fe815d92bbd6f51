package stream_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// The decision for a V2 request or a gRPC call depends on the service time of its model, once that
// is known. The outcome reports how many requests the endpoint had. Requests that run no inference
// report nothing, and requests with tokens have no service time.
func TestServiceTimesDecide(t *testing.T) {
	for name, c := range map[string]struct {
		lines  []string
		reason string
		among  float64
		runs   bool
	}{
		"a request of V2": {
			lines:  []string{"headers :method=POST content-type=application/json mode=NONE :path=/v2/models/text-to-sql/infer"},
			reason: "least to do", among: 3, runs: true,
		},
		"about a model": {
			lines:  []string{"headers :method=GET mode=NONE :path=/v2/models/text-to-sql end"},
			reason: "fewest requests",
		},
		"a call": {
			lines: []string{
				"headers :method=POST content-type=application/grpc mode=NONE shown=NONE :path=/inference.GRPCInferenceService/ModelInfer",
				`body "\x00\x00\x00\x00\x0d\x0a\x0btext-to-sql"`,
			},
			reason: "least to do", among: 3, runs: true,
		},
		"a call about a model": {
			lines: []string{
				"headers :method=POST content-type=application/grpc mode=NONE shown=NONE :path=/inference.GRPCInferenceService/ModelMetadata",
				`body "\x00\x00\x00\x00\x0d\x0a\x0btext-to-sql"`,
			},
			reason: "fewest requests",
		},
		"one with tokens": {
			lines:  []string{"headers :method=POST :path=/v1/completions", `body {"model":"text-to-sql","prompt":"x"}`},
			reason: "least active adapters",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet()
			for range 4 {
				f.Observe(outcome.Outcome{
					Pool: "ns/base", Model: "sql-v2", Endpoint: address, Status: 200, Among: 1,
					Answered: 10 * time.Millisecond,
				})
			}
			if got := f.ServiceTime(objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "base"}, ID: "sql-v2"}); got != 10e6 {
				t.Fatalf("the service time is %d ns", got)
			}
			e := f.View().Snapshot.Pools["ns/base"].Endpoints[0]
			e.InFlight.Add(2)
			server, _ := newServer(t, f, func(c *stream.Config) { c.Settings.Policy.Rule = pick.Latency })
			x := server.Exchange(stream.Own, "", 0)
			told := 0
			for _, line := range c.lines {
				responses, err := x.Receive(message(t, line), time.Now())
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range responses {
					if p := r.GetDynamicMetadata().GetFields()["gateway.pick"].GetStructValue().GetFields(); p["pool"] != nil {
						told++
						if p["reason"].GetStringValue() != c.reason || p["among"].GetNumberValue() != c.among ||
							(p["among"] != nil) != c.runs {
							t.Errorf("the metadata has %v, want %q among %g", p, c.reason, c.among)
						}
					}
				}
			}
			if told != 1 {
				t.Errorf("%d decisions are observed", told)
			}
			if got := e.Backlog.ServiceTimes.Load() == 10e6 && e.Backlog.Timed.Load() == 1; got != c.runs {
				t.Errorf("it claims %d ns of %d", e.Backlog.ServiceTimes.Load(), e.Backlog.Timed.Load())
			}
			x.ReleaseLease()
			x.End(time.Now())
			if e.Backlog.ServiceTimes.Load() != 0 || e.Backlog.Timed.Load() != 0 {
				t.Errorf("after its end it claims %d ns of %d", e.Backlog.ServiceTimes.Load(), e.Backlog.Timed.Load())
			}
		})
	}
}

// The service time in a Model object applies until a service time has been learned. It does not
// apply to requests with tokens.
func TestConfiguredServiceTimeAppliesUntilLearned(t *testing.T) {
	f := newFleetWith(fleet.Config{}, func(s *objects.Set) {
		m := v1alpha1.Model{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sql-v2"}}
		m.Spec.PoolRef.Name, m.Spec.ServiceTime = "base", &metav1.Duration{Duration: 20 * time.Millisecond}
		s.Models = append(s.Models, &m)
	})
	f.Observe(outcome.Outcome{Pool: "ns/base", Model: "other", Endpoint: address, Status: 200, Among: 1, Answered: time.Second})
	const infer = "headers :method=POST content-type=application/json mode=NONE :path=/v2/models/text-to-sql/infer"
	server, _ := newServer(t, f, func(c *stream.Config) { c.Settings.Policy.Rule = pick.Latency })
	claims := func(what string, want int64, lines ...string) {
		t.Helper()
		x := server.Exchange(stream.Own, "", 0)
		defer func() {
			x.ReleaseLease()
			x.End(time.Now())
		}()
		for _, line := range lines {
			if _, err := x.Receive(message(t, line), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if got := f.View().Snapshot.Pools["ns/base"].Endpoints[0].Backlog.ServiceTimes.Load(); got != want {
			t.Errorf("%s: a request claims %d ns, want %d", what, got, want)
		}
	}
	claims("nothing is learned", 20e6, infer)
	claims("with tokens", 0, "headers :method=POST :path=/v1/completions", `body {"model":"text-to-sql","prompt":"x"}`)
	for range 4 {
		f.Observe(outcome.Outcome{
			Pool: "ns/base", Model: "sql-v2", Endpoint: address, Status: 200, Among: 1,
			Answered: 10 * time.Millisecond,
		})
	}
	claims("it is learned", 10e6, infer)
}

// Behind another gateway, the measured time begins when the request is complete and its model has a
// copy. It includes neither the time in the queue nor the time in which the client sends the
// request.
func TestTimingBehindAnotherGateway(t *testing.T) {
	for name, c := range map[string]struct {
		mode   string
		body   []string // parts of the body, which arrive one second apart
		answer string
		held   bool
		want   time.Duration // measured time; 0 if nothing was measured
	}{
		"in chunks":       {"FULL_DUPLEX_STREAMED", []string{"chunk {", "body }"}, "answer {}", false, 70 * time.Millisecond},
		"with trailers":   {"FULL_DUPLEX_STREAMED", []string{"chunk {}", "trailers"}, "answer {}", false, 70 * time.Millisecond},
		"as a whole":      {"BUFFERED", []string{"body {}"}, "answer {}", false, 70 * time.Millisecond},
		"its body unseen": {"NONE", nil, "answer {}", false, 70 * time.Millisecond},
		"held":            {"NONE", nil, "answer {}", true, 70 * time.Millisecond},
		"cut":             {"BUFFERED", []string{"body {}"}, "part {", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet()
			server, observed := newServer(t, f, func(config *stream.Config) {
				if c.held {
					config.Flow = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
				}
			})
			x := server.Exchange(stream.Gateway, "base-picker:9002", 9002)
			now := time.Now()
			receive := func(line string) {
				t.Helper()
				if _, err := x.Receive(message(t, line), now); err != nil {
					t.Fatal(err)
				}
			}
			if c.held {
				f.ApplyPlacement(news(t, f, nil))
			}
			receive("headers :method=POST content-type=application/json mode=" + c.mode +
				" shown=FULL_DUPLEX_STREAMED :path=/v2/models/text-to-sql/infer")
			if c.held {
				if x.Waits() == "" {
					t.Fatal("it is not queued")
				}
				f.ApplyPlacement(news(t, f, []string{"loaded=sql-v2@" + address}))
				now = now.Add(time.Minute)
				x.Resume(now)
			}
			for _, line := range c.body {
				now = now.Add(time.Second)
				receive(line)
			}
			now = now.Add(50 * time.Millisecond)
			receive("response :status=200 content-type=application/json")
			now = now.Add(20 * time.Millisecond)
			receive(c.answer)
			x.End(now.Add(time.Hour))
			if len(*observed) != 1 {
				t.Fatalf("observed %+v", *observed)
			}
			o := (*observed)[0]
			if alone, tells := o.Alone(); o.Answered != c.want || tells != (c.want > 0) || alone != c.want {
				t.Errorf("it took %v among %d: %v, %v; want %v", o.Answered, o.Among, alone, tells, c.want)
			}
		})
	}
}
