package stream_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// A request that would miss its client's deadline, or with late: Shed its route's objective, gets
// 429 on arrival while a copy serves one request per second and four wait. Retry-After is when they
// have been served. Others wait, and so do all if the pool's flow is off.
func TestLateRequestsAreRejectedOnArrival(t *testing.T) {
	for name, c := range map[string]struct {
		shed    bool
		headers string
		want    string
		off     bool
		long    bool // one with a prompt of 16 KB waits instead of the last two
	}{
		"deadline":       {false, " x-envoy-upstream-rq-timeout-ms=3500", "reply: 429", false, false},
		"late deadline":  {false, " x-envoy-upstream-rq-timeout-ms=60000", "", false, false},
		"objective":      {true, "", "reply: 429", false, false},
		"late is Serve":  {false, "", "", false, false},
		"tight deadline": {true, " x-envoy-upstream-rq-timeout-ms=3500", "reply: 429", false, false},
		"flow is off":    {true, " x-envoy-upstream-rq-timeout-ms=3500", "", true, false},
		"a long prompt":  {false, " x-envoy-upstream-rq-timeout-ms=3500", "reply: 429", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var held *flow.Flow
				f := newFleetWith(fleet.Config{Published: func(v *endpointstate.View) {
					if held != nil {
						held.Published(v)
					}
				}, Freed: func(address, model string) { held.Freed(address, model) }}, func(s *objects.Set) {
					for i := range s.Routes {
						if r := &s.Routes[i]; r.Name == "for-missing" && c.shed {
							r.Spec.Late = v1alpha1.LateShed
							limit := v1alpha1.Latency{Value: metav1.Duration{Duration: 3500 * time.Millisecond}}
							r.Spec.Objectives = []v1alpha1.Objective{{Type: v1alpha1.TimeToFirstToken, Latency: limit}}
						}
					}
				})
				held = flow.New(flow.Config{View: f.View, MaxQueued: 100, MaxBytes: 1 << 20})
				f.ApplyPlacement(news(t, f, nil))
				server, _ := newServer(t, f, func(s *stream.Config) {
					s.Flow, s.Settings.QueueTimeout, s.Settings.Flow = held, time.Minute, !c.off
				})
				client := dialServer(t, server, stream.Own)
				limited(t, f, 1)
				send := func(headers, prompt string) (context.CancelFunc, *extprocv3.ProcessingResponse) {
					ctx, cancel := context.WithCancel(t.Context())
					s, err := client.Process(ctx)
					if err != nil {
						t.Fatal(err)
					}
					var last *extprocv3.ProcessingResponse
					for _, line := range []string{
						"headers :method=POST :path=/v1/completions" + headers, `body {"model":"missing","prompt":"` + prompt + `"}`,
					} {
						if err := s.Send(message(t, line)); err != nil {
							t.Fatal(err)
						}
						if last, err = s.Recv(); err != nil {
							t.Fatal(err)
						}
					}
					return cancel, last
				}
				end, _ := send("", "first")
				var ends []context.CancelFunc
				queue := func(n int, prompt string) {
					for range n {
						next, m := send("", prompt)
						if m.GetOverrideMessageTimeout() == nil {
							t.Fatalf("a request does not wait: %s", render(t, m))
						}
						ends = append(ends, next)
					}
				}
				queue(2, "other")
				for range 10 { // one request per second
					time.Sleep(time.Second)
					end()
					synctest.Wait()
					end, ends = ends[0], ends[1:]
					queue(1, "other")
				}
				retry := "[5-7]" // seconds
				if c.long {
					retry = "1[0-9]"
					queue(1, strings.Repeat("long", 4000))
				} else {
					queue(2, "other")
				}
				synctest.Wait()
				cancel, m := send(c.headers, "mine")
				if c.want == "" {
					if m.GetOverrideMessageTimeout() == nil {
						t.Errorf("the request does not wait: %s", render(t, m))
					}
				} else if got := render(t, m); !strings.Contains(got, c.want) || !strings.Contains(got, `"code":"too_late"`) ||
					!regexp.MustCompile(`retry-after=`+retry+`\n`).MatchString(got) {
					t.Errorf("%s", got)
				}
				refused := strings.Join(series(server.Meter, "headgate_band_refused_total"), "\n")
				if counted := strings.HasSuffix(refused, `reason="late"} 1`); counted != (c.want != "") {
					t.Errorf("refused requests: %q", refused)
				}
				cancel()
				end()
				for _, end := range ends {
					end()
				}
				synctest.Wait()
			})
		})
	}
}
