package stream_test

import (
	"context"
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

// The fallback serves a request that late: Shed would reject, at once, by HTTP and by gRPC.
// Without a fallback the request gets 429.
func TestFallbackServesLateRequests(t *testing.T) {
	http := []string{"headers :method=POST :path=/v1/completions", `body {"model":"missing","prompt":"mine"}`}
	call := []string{
		"headers :method=POST content-type=application/grpc mode=NONE shown=NONE :path=/inference.GRPCInferenceService/ModelInfer",
		`body "\x00\x00\x00\x00\x0c\x0a\x07missing\x1a\x01x"`,
	}
	const served, tooLate = `"fallback_name":"baseModel"`, "too_late"
	for name, c := range map[string]struct {
		late     string
		fallback v1alpha1.Fallback
		lines    []string
		want     string
	}{
		"HTTP":                   {v1alpha1.LateShed, v1alpha1.Fallback{BaseModel: true}, http, served},
		"gRPC":                   {v1alpha1.LateShed, v1alpha1.Fallback{BaseModel: true}, call, served},
		"HTTP, without fallback": {v1alpha1.LateShed, v1alpha1.Fallback{}, http, tooLate},
		"gRPC, without fallback": {v1alpha1.LateShed, v1alpha1.Fallback{}, call, "ResourceExhausted"},
		"late is Serve":          {v1alpha1.LateServe, v1alpha1.Fallback{BaseModel: true}, http, ""},
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
						if r := &s.Routes[i]; r.Name == "for-missing" {
							limit := v1alpha1.Latency{Value: metav1.Duration{Duration: 3500 * time.Millisecond}}
							r.Spec.Objectives = []v1alpha1.Objective{{Type: v1alpha1.TimeToFirstToken, Latency: limit}}
							if r.Spec.Late = c.late; c.fallback.BaseModel {
								r.Spec.Fallback = &c.fallback
							}
						}
					}
				})
				held = flow.New(flow.Config{View: f.View, MaxQueued: 100, MaxBytes: 1 << 20})
				f.ApplyPlacement(news(t, f, nil))
				server, _ := newServer(t, f, func(s *stream.Config) { s.Flow, s.Settings.QueueTimeout = held, time.Minute })
				client := dialServer(t, server, stream.Own)
				limited(t, f, 1)
				send := func(lines []string) (context.CancelFunc, *extprocv3.ProcessingResponse) {
					ctx, cancel := context.WithCancel(t.Context())
					s, err := client.Process(ctx)
					var last *extprocv3.ProcessingResponse
					for _, line := range lines {
						if err == nil {
							err = s.Send(message(t, line))
						}
						if err == nil {
							last, err = s.Recv()
						}
					}
					if err != nil {
						t.Error(err)
					}
					return cancel, last
				}
				var ends []context.CancelFunc
				begin := func() {
					end, _ := send([]string{http[0], `body {"model":"missing","prompt":"other"}`})
					ends = append(ends, end)
				}
				for range 3 {
					begin()
				}
				for i := range 10 { // one request per second
					time.Sleep(time.Second)
					ends[i]()
					synctest.Wait()
					begin()
				}
				begin()
				begin()
				synctest.Wait()
				began := time.Now()
				end, m := send(c.lines)
				ends = append(ends, end)
				if waits := m.GetOverrideMessageTimeout() != nil; waits != (c.want == "") || time.Since(began) > 0 {
					t.Errorf("after %v it waits: %v", time.Since(began), waits)
				} else if !waits && !strings.Contains(render(t, m), c.want) {
					t.Errorf("%s", render(t, m))
				}
				for _, end := range ends {
					end()
				}
				synctest.Wait()
				awaitQueued(t, held, 0)
			})
		})
	}
}
