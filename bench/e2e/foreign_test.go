package e2e

import (
	"bytes"
	"net"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
)

// foreign is an endpoint picker other than Headgate's. It implements the protocol and does what the
// request header x-do says, with the value of the header x-what.
type foreign struct {
	extprocv3.UnimplementedExternalProcessorServer
	heard chan string // one line for each request header or serving endpoint; lines that are not read in time are dropped
}

func (f *foreign) hear(line string) {
	select {
	case f.heard <- line:
	default:
	}
}

// startForeign serves a foreign picker at address, without TLS.
func startForeign(t *testing.T, address string) *foreign {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	is := &foreign{heard: make(chan string, 1000)}
	server := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(server, is)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return is
}

func (f *foreign) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	headers, body := make(map[string]string), new(bytes.Buffer)
	for {
		in, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the request is over
		}
		var out []*extprocv3.ProcessingResponse
		switch m := in.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			for _, h := range m.RequestHeaders.GetHeaders().GetHeaders() {
				headers[h.GetKey()] = string(h.GetRawValue())
				f.hear("asked " + h.GetKey() + "=" + string(h.GetRawValue()))
			}
			if m.RequestHeaders.GetEndOfStream() {
				out = decide(headers, nil)
			}
		case *extprocv3.ProcessingRequest_RequestBody:
			if body.Write(m.RequestBody.GetBody()); m.RequestBody.GetEndOfStream() {
				out = decide(headers, body.Bytes())
			}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			served := in.GetMetadataContext().GetFilterMetadata()[wire.DestinationNamespace].GetFields()[wire.ServedKey].GetStringValue()
			f.hear("served " + served)
			mutation := new(extprocv3.HeaderMutation) // like some pickers, sets every received header again
			for _, h := range m.ResponseHeaders.GetHeaders().GetHeaders() {
				mutation.SetHeaders = append(mutation.SetHeaders, set(h.GetKey(), string(h.GetRawValue())))
			}
			mutation.SetHeaders = append(mutation.SetHeaders, set("transfer-encoding", "chunked"), set("x-from-picker", served))
			out = []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
				ResponseHeaders: &extprocv3.HeadersResponse{
					Response: &extprocv3.CommonResponse{HeaderMutation: mutation},
				},
			}}}
		}
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

func set(key, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// decide returns the picker's responses to a whole request.
func decide(headers map[string]string, body []byte) []*extprocv3.ProcessingResponse {
	what := headers["x-what"]
	if headers["x-do"] == "refuse" {
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
			ImmediateResponse: &extprocv3.ImmediateResponse{
				Status: &typev3.HttpStatus{Code: typev3.StatusCode_TooManyRequests}, Body: []byte(what),
				Headers: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{set("retry-after", "7")}},
			},
		}}}
	}
	common := &extprocv3.CommonResponse{
		ClearRouteCache: true,
		HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
			set("x-by-picker", "1"), set("host", "elsewhere.test"), set(":path", "/metrics"), set(wire.PoolHeader, what),
		}},
	}
	m := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{Response: common},
	}}
	if headers["x-do"] == "pick" {
		common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, set(wire.DestinationHeader, what))
		lb, _ := structpb.NewStruct(map[string]any{wire.DestinationHeader: what})
		m.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{wire.DestinationNamespace: structpb.NewStructValue(lb)}}
	}
	all := []*extprocv3.ProcessingResponse{m}
	if body == nil {
		return all
	}
	return append(all,
		&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
				BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
					StreamedResponse: &extprocv3.StreamedBodyResponse{
						Body:        body,
						EndOfStream: true,
					},
				}},
			}},
		}})
}

// Envoy passes a picker's responses on to clients unchanged. It uses a picked endpoint only if the
// endpoint belongs to the pool.
func TestPickersDecisionIsCarriedOut(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	prefix := strings.TrimSuffix(s.Listen, "1:8080")
	f := startForeign(t, prefix+"51:9002")
	s.backend(t, prefix+"61:8000", "outside")
	s.write("theirs.yaml", picked("theirs", "", plain, prefix+"51:9002"))
	say := func(do, what string, more ...string) request {
		q := at("theirs", completion(baseName, 2, false))
		q.header["X-Do"], q.header["X-What"] = do, what
		for i := 0; i < len(more); i += 2 {
			q.header[more[i]] = more[i+1]
		}
		return q
	}
	s.await("the picker is asked", func() bool { return s.must(say("pick", s.endpoint(1))).status == http.StatusOK })
	for _, want := range []struct {
		what   string
		r      request
		status int
		served string
		body   string
	}{
		{"a pick", say("pick", s.endpoint(3)), 200, s.endpoint(3), ""},
		{"a pick of a request without a body", func() request {
			q := say("pick", s.endpoint(2))
			q.method, q.path, q.body = "GET", "/v1/models", ""
			return q
		}(), 200, s.endpoint(2), ""},
		{"picks in order, the first of which is no endpoint", say("pick", prefix+"99:8000,"+s.endpoint(4)), 200, s.endpoint(4), ""},
		{"an address outside the pool", say("pick", prefix+"61:8000"), 503, "", "no_endpoint"},
		{"control's own port", say("pick", s.Admin), 503, "", "no_endpoint"},
		{"no pick", say("", ""), 503, "", "no_endpoint"},
		{"a pick by a client", say("", "", "X-Gateway-Destination-Endpoint", s.endpoint(1)), 503, "", "no_endpoint"},
		{"a refusal", say("refuse", "too much"), 429, "", "too much"},
	} {
		a := s.must(want.r)
		if a.status != want.status || a.served != want.served || !strings.Contains(a.body, want.body) {
			t.Errorf("%s: %d from %q: %s", want.what, a.status, a.served, a.body)
		}
		if want.status == 200 && !strings.Contains(a.body, `"id"`) {
			t.Errorf("%s is for another path: %.100s", want.what, a.body)
		}
		if a.header.Get("x-from-picker") != want.served {
			t.Errorf("%s: the picker was told that %q served, want %q", want.what, a.header.Get("x-from-picker"), want.served)
		}
		if want.status == 429 && a.header.Get("Retry-After") != "7" {
			t.Errorf("%s: Retry-After is %q", want.what, a.header.Get("Retry-After"))
		}
	}
	// Over HTTP/2 a response has no transfer-encoding, even if the picker sets one.
	http2 := new(http.Protocols)
	http2.SetUnencryptedHTTP2(true)
	over := *s
	over.client = &http.Client{Transport: &http.Transport{Protocols: http2}}
	if a := over.must(say("pick", s.endpoint(2))); a.status != http.StatusOK || !strings.Contains(a.body, "completion_tokens") ||
		a.header.Get("transfer-encoding") != "" {
		t.Errorf("over HTTP/2: %d %v %s", a.status, a.header, a.body)
	}
	over.client.CloseIdleConnections()
	for len(f.heard) > 0 {
		<-f.heard
	}
	q := say("pick", s.endpoint(1), "X-Llm-D-Inference-Objective", "one", "X-Gateway-Destination-Endpoint", "x",
		"X-Gateway-Destination-Endpoint-Subset", "x")
	s.must(q)
	var all []string
	for len(f.heard) > 0 {
		all = append(all, <-f.heard)
	}
	asked := strings.Join(all, "\n")
	if !strings.Contains(asked, "asked x-llm-d-inference-objective=one") || strings.Contains(asked, "asked x-gateway") {
		t.Errorf("the picker was asked with\n%s", asked)
	}
}
