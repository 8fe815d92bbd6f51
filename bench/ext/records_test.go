package ext

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/bench/pace"
	"github.com/headgate/headgate/extproc/accesslog"
	extproccodec "github.com/headgate/headgate/extproc/codec"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// The records of a client are those of requests that succeeded, for extproc and for no-ops.
func TestRecords(t *testing.T) {
	const address = "10.0.0.1:8000"
	f := fleet.New(fleet.Config{})
	w := objects.Build(objects.Endpoints([]string{address}))
	f.SetWorld(w)
	f.Scrape(address).Succeeded(engine.Load{})
	f.SetModels(address, engine.Models{Base: []string{"llama"}})
	f.SetWorld(w) // publishes a view with these models
	server := grpc.NewServer(grpc.ForceServerCodecV2(extproccodec.New()))
	extprocv3.RegisterExternalProcessorServer(server, stream.New(stream.Config{
		Fleet: f, Meter: metrics.New(f), Log: slog.New(slog.DiscardHandler), Default: objects.EndpointsPool,
	}).For(stream.Own))
	got := make(chan outcome.Outcome, 100)
	accesslog.NewServer(func(o outcome.Outcome) { got <- o }, nil).Register(server)
	c := clientOf(t, server, buffered, "llama", 1000)
	var err error
	if c.records, err = newRecorder(t.Context(), c.conns[0]); err != nil {
		t.Fatal(err)
	}
	const requests = 50 // their records have more bytes than one message
	all, _, err := send(t.Context(), pace.Load{Requests: requests}, 4, c.ask)
	if err != nil || len(all.took) != requests {
		t.Fatalf("%d of %d requests may pass, %v, %v", len(all.took), requests, all.failure, err)
	}
	if err := c.records.close(); err != nil {
		t.Fatal(err)
	}
	if len(got) != requests {
		t.Errorf("%d records of %d requests", len(got), requests)
	}
	for range len(got) {
		o := <-got
		if o.Endpoint != address || o.Status != 200 || o.Pool != objects.EndpointsPool.String() || o.Model != "llama" || o.Attempts != 1 ||
			o.Began.IsZero() || o.FirstBody <= 0 || o.Gateway <= 0 || o.Duration < o.Gateway || o.ByEnvoy || o.ByExtproc {
			t.Fatalf("a record is read as %+v", o)
		}
	}
}

// If a picker takes no records, or ends their stream, no request waits for it, and the end reports
// why.
func TestRecordsThatNobodyTakes(t *testing.T) {
	server := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(server, newStd(endpoints))
	c := clientOf(t, server, buffered, "m", 1000)
	var err error
	if c.records, err = newRecorder(t.Context(), c.conns[0]); err != nil {
		t.Fatal(err)
	}
	all, _, err := send(t.Context(), pace.Load{Requests: 3000}, 8, c.ask) // more than may wait
	if err != nil || len(all.took) != 3000 {
		t.Errorf("%d requests may pass, %v, %v", len(all.took), all.failure, err)
	}
	if err := c.records.close(); status.Code(err) != codes.Unimplemented {
		t.Errorf("the error is %v", err)
	}
}

// In full duplex a picker gets the engine's response after its decision, and must reply to each
// part of it.
func TestResponseParts(t *testing.T) {
	part := func(m *extprocv3.ProcessingResponse) []*extprocv3.ProcessingResponse {
		return []*extprocv3.ProcessingResponse{m}
	}
	chunk := echo(responseBody, &extprocv3.HttpBody{Body: []byte("x"), EndOfStream: true})
	for _, c := range []struct {
		name    string
		replies []*extprocv3.ProcessingResponse
		wrong   string
	}{
		{"none", nil, ""},
		{"headers", part(reply(responseHeaders)), ""},
		{"both", append(part(reply(responseHeaders)), chunk), ""},
		{"body first", part(chunk), "before that to its headers"},
		{"headers twice", append(part(reply(responseHeaders)), reply(responseHeaders)), "a second reply"},
		{"after the end", append(part(reply(responseHeaders)), chunk, chunk), "after its end"},
		{"not streamed", append(part(reply(responseHeaders)), reply(responseBody)), "form of another mode"},
		{"of the request", part(reply(requestHeaders)), "was not sent"},
	} {
		var r replies
		var err error
		for _, m := range c.replies {
			if err = r.takeResponse(m); err != nil {
				break
			}
		}
		if (err == nil) != (c.wrong == "") || err != nil && (!errors.Is(err, errProtocol) || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.wrong)
		}
	}
}

// heard is a stream of a picker that notes which parts of a request and its response arrive.
type heard struct {
	grpc.ServerStream
	parts chan<- any
}

func (h heard) RecvMsg(m any) error {
	err := h.ServerStream.RecvMsg(m)
	if in, ok := m.(*extprocv3.ProcessingRequest); ok && err == nil {
		h.parts <- in.GetRequest()
	}
	return err
}

// Only in full duplex the picker gets the headers and the body of a response, after the request.
func TestWhichModesSendResponses(t *testing.T) {
	for m, want := range map[mode]string{
		buffered: "RequestHeaders RequestBody", headers: "RequestHeaders",
		duplex: "RequestHeaders RequestBody ResponseHeaders ResponseBody",
	} {
		parts := make(chan any, 10)
		hear := func(server any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(server, heard{s, parts})
		}
		server := grpc.NewServer(grpc.StreamInterceptor(hear))
		extprocv3.RegisterExternalProcessorServer(server, newStd(endpoints))
		if _, _, err := clientOf(t, server, m, "m", 1000).ask(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(parts)
		var got []string
		for p := range parts {
			_, name, _ := strings.Cut(fmt.Sprintf("%T", p), "ProcessingRequest_")
			got = append(got, name)
		}
		if is := strings.Join(got, " "); is != want {
			t.Errorf("%s: the picker gets %s, want %s", m, is, want)
		}
	}
}
