package stream_test

import (
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// Headgate's own Envoys send a request to the endpoint's port for its protocol. Other gateways send
// it to the endpoint's address.
func TestRequestsGoToThePortOfTheirProtocol(t *testing.T) {
	f := newFleetWith(fleet.Config{}, func(s *objects.Set) {
		grpc, http := int32(9000), int32(9001)
		settings := v1alpha1.PoolSettings{}
		settings.Namespace, settings.Name, settings.Spec.PoolRef.Name = "ns", "base", "base"
		settings.Spec.Ports = &v1alpha1.Ports{GRPC: &grpc, HTTP: &http}
		s.Settings = append(s.Settings, settings)
	})
	server, _ := newServer(t, f, nil)
	const call = "content-type=application/grpc :path=/some.Service/Method mm-model-id=llama"
	const rest = "content-type=application/json :path=/v2/models/llama/infer"
	own := server.ExchangeAt("", objects.Name{}, nil)
	for _, c := range []struct {
		what, headers, to string
		x                 stream.Exchange
	}{
		{"a call", call, "10.0.0.1:9000", own},
		{"V2 by REST", rest, "10.0.0.1:9001", server.ExchangeAt("", objects.Name{}, nil)},
		{"a call of another gateway", call, "10.0.0.1:8000", server.Exchange(stream.Gateway, "base-picker:9002", 0)},
		{"V2 of another gateway", rest, "10.0.0.1:8000", server.Exchange(stream.Gateway, "base-picker:9002", 0)},
	} {
		out, err := c.x.Receive(message(t, "headers :method=POST mode=NONE shown=NONE "+c.headers), time.Now())
		if err != nil || len(out) != 1 {
			t.Fatalf("%s: %v, %v", c.what, out, err)
		}
		if got := headers(out[0].GetRequestHeaders().GetResponse().GetHeaderMutation()); !strings.Contains(got,
			"x-gateway-destination-endpoint="+c.to) {
			t.Errorf("%s goes to%s, want %s", c.what, got, c.to)
		}
	}
}

// When extproc requests a call's messages, it also requests trailers, because Envoy otherwise sends
// no chunks. It requests no part of the response.
func TestMessagesAreRequestedWithTrailers(t *testing.T) {
	server, _ := newServer(t, newFleet(), nil)
	x := server.ExchangeAt("", objects.Name{}, nil)
	out, err := x.Receive(&extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
				{Key: ":method", RawValue: []byte("POST")},
				{Key: ":path", RawValue: []byte("/inference.GRPCInferenceService/ModelInfer")},
				{Key: "content-type", RawValue: []byte("application/grpc")},
			}},
		}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{},
	}, time.Now())
	if err != nil || len(out) != 1 {
		t.Fatal(out, err)
	}
	m := out[0].GetModeOverride()
	if m.GetRequestTrailerMode() != extprocfilterv3.ProcessingMode_SEND ||
		m.GetResponseHeaderMode() != extprocfilterv3.ProcessingMode_SKIP || m.GetResponseBodyMode() != extprocfilterv3.ProcessingMode_NONE {
		t.Errorf("it asks for %v", m)
	}
}
