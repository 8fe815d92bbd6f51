package stream_test

import (
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/internal/objects"
)

// BenchmarkExchange measures one request of each API, from its headers to the end of its stream,
// without gRPC and Envoy.
func BenchmarkExchange(b *testing.B) {
	for _, c := range []struct {
		name  string
		lines []string
	}{
		{"openai", []string{
			"headers :method=POST :path=/v1/chat/completions content-type=application/json content-length=60",
			`body {"model":"text-to-sql","messages":[{"role":"user","content":"hello"}]}`,
		}},
		{"v2", []string{"headers :method=POST :path=/v2/models/llama/infer content-type=application/json mode=NONE shown=NONE"}},
		{"grpc", []string{
			"headers :method=POST content-type=application/grpc mode=NONE shown=NONE :path=/inference.GRPCInferenceService/ModelInfer",
			`body "\x00\x00\x00\x00\x0a\x0a\x05llama\x1a\x01x"`,
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := newFleet()
			server, _ := newServer(b, f, nil)
			var messages []*extprocv3.ProcessingRequest
			for _, line := range c.lines {
				messages = append(messages, message(b, line))
			}
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				x := server.ExchangeAt("", objects.Name{}, nil)
				for _, m := range messages {
					if _, err := x.Receive(m, now); err != nil {
						b.Fatal(err)
					}
				}
				x.End(now)
				x.ReleaseLease()
			}
		})
	}
}
