package stream_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// inGzip is the message with a body in gzip.
func inGzip(t *testing.T, body string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write([]byte(body))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("body %q", out.String())
}

// A body that was decoded counts until it was sent on, waits or is answered, and not more than so many do at once.
func TestDecodedBodiesAreBounded(t *testing.T) {
	f := newFleet()
	held := flow.New(flow.Config{View: f.View, MaxHeld: 10, MaxBytes: 1 << 20})
	f.Hear(news(t, f, nil))
	server, _ := newServer(t, f, func(c *stream.Config) { c.Flow = held })
	send := func(body string) (stream.Exchange, string) {
		x := server.ExchangeAt("", objects.Name{}, nil)
		now := time.Now()
		if _, err := x.Receive(message(t, "headers :method=POST :path=/v1/completions content-encoding=gzip"), now); err != nil {
			t.Fatal(err)
		}
		out, err := x.Receive(message(t, inGzip(t, body)), now)
		if err != nil {
			t.Fatal(err)
		}
		if len(out) == 0 {
			return x, x.Waits()
		}
		return x, render(t, out[0])
	}
	const body = `{"model":"llama"}`
	x, _ := send(body)
	if n := server.Reads(0); n != int64(len(body)) {
		t.Errorf("%d bytes count of a body that is to be sent on, want %d", n, len(body))
	}
	x.End(time.Now())
	for what, body := range map[string]string{"is answered": `{"model":"no"}`, "waits": `{"model":"missing"}`} {
		x, _ := send(body)
		if n := server.Reads(0); n != 0 {
			t.Errorf("%d bytes count of a request that %s", n, what)
		}
		x.End(time.Now())
	}
	server.Reads(stream.MaxKept)
	if _, got := send(body); got != "reply: 429 details=headgate_crowded content-type=application/json\n"+
		`{"error":{"message":"The gateway has too many large messages to read. Try again later.","type":"rate_limit_error","param":null,"code":"crowded"}}`+"\n" {
		t.Errorf("one too many gets %s", got)
	}
	if n := server.Reads(-stream.MaxKept); n != 0 {
		t.Errorf("%d bytes count when all requests are over", n)
	}
}
