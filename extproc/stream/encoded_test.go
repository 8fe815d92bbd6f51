package stream_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// inGzip returns a message whose body is compressed.
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

// A decoded body counts as buffered until it is forwarded, queued or answered. The total is
// limited.
func TestDecodedBodiesAreBounded(t *testing.T) {
	f := newFleet()
	held := flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
	f.ApplyPlacement(news(t, f, nil))
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
		t.Errorf("%d bytes are counted for a body that will be forwarded, want %d", n, len(body))
	}
	x.End(time.Now())
	for what, body := range map[string]string{"is answered": `{"model":"no"}`, "waits": `{"model":"missing"}`} {
		x, _ := send(body)
		if n := server.Reads(0); n != 0 {
			t.Errorf("%d bytes are counted for a request that %s", n, what)
		}
		x.End(time.Now())
	}
	server.Reads(stream.MaxKept)
	if _, got := send(body); got != "reply: 429 details=headgate_crowded content-type=application/json\n"+
		`{"error":{"message":"The gateway is out of memory for large messages. Try again later.","type":"rate_limit_error","param":null,"code":"crowded"}}`+"\n" {
		t.Errorf("a request beyond the limit gets %s", got)
	}
	if n := server.Reads(-stream.MaxKept); n != 0 {
		t.Errorf("%d bytes are counted after all requests", n)
	}
}

// A decoded body stops counting as buffered when it is forwarded or queued.
func TestDecodedBodiesAreLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, server := queueingServer(t, time.Minute, 10)
		client := dialServer(t, server, stream.Own)
		ctx, leave := context.WithCancel(t.Context())
		for _, model := range []string{"llama", "missing"} {
			s, err := client.Process(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range []string{
				"headers :method=POST :path=/v1/completions content-encoding=gzip",
				inGzip(t, `{"model":"`+model+`"}`),
			} {
				if err = s.Send(message(t, line)); err == nil {
					_, err = s.Recv() // the decision, or the message that extends the data plane's timeout
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			if n := server.Reads(0); n != 0 {
				t.Errorf("%d bytes are counted for a request for %s", n, model)
			}
		}
		leave()
	})
}

// A request that waits keeps only the decoded body, because the queue counts only that. The body
// that arrived may be much larger.
func TestWaitingRequestsKeepOnlyDecodedBodies(t *testing.T) {
	_, _, server := queueingServer(t, time.Minute, 10)
	x := server.ExchangeAt("", objects.Name{}, nil)
	defer func() { x.End(time.Now()) }()
	for _, line := range []string{
		"headers :method=POST :path=/v1/completions content-encoding=gzip", inGzip(t, `{"model":"missing"}`),
	} {
		if _, err := x.Receive(message(t, line), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if x.Waits() == "" || x.Received() != 0 {
		t.Errorf("it waits for %q, and %d bytes that arrived are kept", x.Waits(), x.Received())
	}
}

// A body waits for a decoder only for a limited time, and stops waiting when extproc stops. A
// decoder that panics fails only one request.
func TestWaitsForDecodersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := newServer(t, newFleet(), func(*stream.Config) {})
		send := func() string {
			x := server.ExchangeAt("", objects.Name{}, nil)
			defer func() { x.End(time.Now()) }()
			if _, err := x.Receive(message(t, "headers :method=POST :path=/v1/completions content-encoding=gzip"), time.Now()); err != nil {
				t.Fatal(err)
			}
			out, err := x.Receive(message(t, inGzip(t, `{"model":"llama"}`)), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return render(t, out[0])
		}
		expect := func(what, want string) {
			t.Helper()
			if got := send(); !strings.Contains(got, want) {
				t.Errorf("%s: %s", what, got)
			}
		}
		const decided = "destination-endpoint="
		giveBack := server.TakeDecoders()
		began := time.Now()
		expect("no decoder is free", "429 details=headgate_crowded")
		if waited := time.Since(began); waited != 2*time.Second {
			t.Errorf("it waited %v", waited)
		}
		time.AfterFunc(time.Second, giveBack)
		expect("a decoder is free later", decided)
		for range server.BreakDecoders() {
			func() {
				defer func() {
					if recover() == nil {
						t.Error("a broken decoder does not panic")
					}
				}()
				send()
			}()
		}
		expect("each decoder has panicked", decided)
		giveBack = server.TakeDecoders()
		defer giveBack()
		server.Refuse()
		began = time.Now()
		expect("extproc stops", "503")
		if waited := time.Since(began); waited != 0 {
			t.Errorf("it waited %v while extproc stopped", waited)
		}
	})
}

// When extproc requests the body, Headgate's own Envoy sends as much of responses as before. The
// mode override must repeat that, because it replaces the whole mode.
func TestRequestingABodyKeepsResponseModes(t *testing.T) {
	server, _ := newServer(t, newFleet(), func(*stream.Config) {})
	x := server.ExchangeAt("", objects.Name{}, nil)
	defer func() { x.End(time.Now()) }()
	out, err := x.Receive(message(t, "headers :method=POST :path=/v1/embeddings mode=NONE content-encoding=gzip"), time.Now())
	if err != nil || len(out) != 1 {
		t.Fatal(out, err)
	}
	want := &extprocfilterv3.ProcessingMode{
		RequestHeaderMode: extprocfilterv3.ProcessingMode_SEND, RequestBodyMode: extprocfilterv3.ProcessingMode_BUFFERED,
		RequestTrailerMode: extprocfilterv3.ProcessingMode_SEND, ResponseHeaderMode: extprocfilterv3.ProcessingMode_SKIP,
		ResponseBodyMode: extprocfilterv3.ProcessingMode_NONE, ResponseTrailerMode: extprocfilterv3.ProcessingMode_SEND,
	}
	if got := out[0].GetModeOverride(); !proto.Equal(got, want) {
		t.Errorf("the mode is %v, want %v", got, want)
	}
}
