package stream_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/stream"
)

// For any messages in any order: nothing panics, the request is not left in flight, nothing follows
// a reply, and a body in chunks stays unchanged.
func FuzzExchange(f *testing.F) {
	whole := `{"model":"llama","prompt":"x"}`
	f.Add(byte(1), []byte("H4B"), []byte(whole))
	f.Add(byte(1), []byte("H4bbBBTrAZ"), []byte(whole))
	f.Add(byte(0), []byte("H2BrAZ"), []byte(`{"model":"text-to-sql"}`))
	f.Add(byte(1), []byte("H0rZ"), []byte("llama"))
	f.Add(byte(1), []byte("H3bT"), []byte(`{"model":"llama","prompt":`))
	f.Add(byte(3), []byte("hbTBrra"), []byte(whole))
	f.Add(byte(1), []byte("?rBH"), []byte{0xff})
	f.Add(byte(8), []byte("H2BBA"), []byte(`{"model":"missing"}`))
	f.Add(byte(9), []byte("H4bBA"), []byte(`{"model":"missing"}`))
	fl := newFleet()
	fl.ApplyPlacement(endpointstate.PlacementUpdate{All: true})
	servers := map[[2]bool]*stream.Server{}
	for _, override := range []bool{false, true} {
		for _, holds := range []bool{false, true} {
			servers[[2]bool{override, holds}], _ = newServer(f, fl, func(c *stream.Config) {
				c.ModeOverride, c.Observe = override, nil
				if holds {
					c.Flow = flow.New(flow.Config{View: fl.View, MaxQueued: 10, MaxBytes: 1 << 20})
				}
			})
			if override {
				servers[[2]bool{override, holds}].ReadPrompts()
			}
		}
	}
	f.Fuzz(func(t *testing.T, front byte, script, body []byte) {
		authority := "base-picker:9002"
		if front&4 != 0 {
			authority = ""
		}
		x := servers[[2]bool{front&2 != 0, front&8 != 0}].Exchange(stream.Front(front&1), authority, 0)
		now := time.Now()
		var in, out []byte
		replied, duplex := false, false
		for i := 0; i < len(script) && i < 64; i++ {
			m, ok := scripted(script, &i, body)
			if !ok {
				continue
			}
			if h := m.GetRequestHeaders(); h != nil {
				duplex = m.GetProtocolConfig().GetRequestBodyMode() == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
			}
			answers, err := x.Receive(m, now)
			if err != nil {
				break
			}
			for turn := 0; x.Waits() != ""; turn++ {
				if len(answers) > 0 {
					t.Fatalf("a waiting request gets %v", answers)
				}
				x.Override()
				if answers = x.Resume(now); turn == 2 && x.Waits() != "" {
					answers = x.Expire()
				}
			}
			in = append(in, m.GetRequestBody().GetBody()...)
			for _, a := range answers {
				if replied && (a.GetRequestHeaders() != nil || a.GetRequestBody() != nil || a.GetImmediateResponse() != nil) {
					t.Fatalf("after a reply: %v", a)
				}
				replied = replied || a.GetImmediateResponse() != nil
				out = append(out, a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()...)
				if n := len(a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()); n > stream.MaxChunk {
					t.Fatalf("a chunk of %d bytes", n)
				}
			}
		}
		if duplex && !replied && len(out) > 0 && !bytes.Contains(out, []byte("sql-v2")) && !bytes.HasPrefix(in, out) {
			t.Fatalf("the input was %q, the output %q", in, out)
		}
		x.End(now)
		x.End(now)
		if leases := fl.Leases().Current; int64(leases) != inFlight(fl) {
			t.Fatalf("%d requests are in flight, %d of them leased", inFlight(fl), leases)
		}
		x.ReleaseLease()
		if n := inFlight(fl); n != 0 {
			t.Fatalf("%d requests are left in flight", n)
		}
	})
}

// scripted returns the message that a letter of the script stands for.
func scripted(script []byte, i *int, body []byte) (*extprocv3.ProcessingRequest, bool) {
	m := &extprocv3.ProcessingRequest{}
	half := body[:len(body)/2]
	switch letter := script[*i]; letter {
	case 'H', 'h':
		h := &extprocv3.HttpHeaders{EndOfStream: letter == 'h', Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			{Key: ":method", RawValue: []byte("POST")},
			{Key: ":path", RawValue: []byte("/v1/completions")},
			{Key: "content-length", RawValue: []byte("30")},
		}}}
		m.Request = &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: h}
		if *i+1 < len(script) && script[*i+1] >= '0' && script[*i+1] <= '6' {
			*i++
			m.ProtocolConfig = &extprocv3.ProtocolConfiguration{
				RequestBodyMode:  extprocfilterv3.ProcessingMode_BodySendMode(script[*i] - '0'),
				ResponseBodyMode: extprocfilterv3.ProcessingMode_BodySendMode(len(body) % 5),
			}
		}
		if len(script)%3 == 0 {
			m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				"gateway.request": {Fields: map[string]*structpb.Value{"model": structpb.NewStringValue(strings.ToValidUTF8(string(half), ""))}},
			}}
		}
	case 'B', 'b':
		part := body
		if letter == 'b' {
			part = half
		}
		m.Request = &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: part, EndOfStream: letter == 'B'}}
	case 'T':
		m.Request = &extprocv3.ProcessingRequest_RequestTrailers{}
	case 'R', 'r':
		m.Request = &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			EndOfStream: letter == 'R',
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
				{Key: ":status", Value: "200"},
				{Key: "content-type", Value: "text/event-stream"},
			}},
		}}
	case 'A', 'a':
		m.Request = &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: body, EndOfStream: letter == 'A'}}
	case 'Z':
		m.Request = &extprocv3.ProcessingRequest_ResponseTrailers{}
	case '?': // a message with arbitrary bytes
		if proto.Unmarshal(body, m) != nil {
			return nil, false
		}
	default:
		return nil, false
	}
	return m, true
}
