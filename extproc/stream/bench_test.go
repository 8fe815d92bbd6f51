package stream_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// BenchmarkExchange measures one request of each API, from its headers to the end of its stream,
// without gRPC and Envoy. With flow, the pool's gate is on, and nobody waits.
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
		for name, flows := range map[string]bool{c.name: false, c.name + " with flow": true} {
			b.Run(name, func(b *testing.B) {
				var held *flow.Flow
				f := newFleetWith(fleet.Config{Freed: func(address, model string) {
					if held != nil {
						held.Freed(address, model)
					}
				}})
				server, _ := newServer(b, f, func(c *stream.Config) {
					if flows {
						held = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20, Alone: true})
						c.Flow, c.Settings.RequestsPerEndpoint = held, 64
					}
				})
				var messages [][]byte
				for _, line := range c.lines {
					encoded, err := proto.Marshal(message(b, line))
					if err != nil {
						b.Fatal(err)
					}
					messages = append(messages, encoded)
				}
				var encoded []byte
				now := time.Now()
				b.ReportAllocs()
				for b.Loop() {
					x := server.ExchangeAt("", objects.Name{}, nil)
					for _, m := range messages {
						answers, err := x.ReceiveWire(m, now)
						for _, a := range answers {
							if a.Encoded() == nil && err == nil {
								encoded, err = a.Append(encoded[:0])
							}
						}
						if err != nil {
							b.Fatal(err)
						}
					}
					x.End(now)
					x.ReleaseLease()
				}
			})
		}
	}
}
