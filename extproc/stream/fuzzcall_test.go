package stream_test

import (
	"encoding/binary"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/stream"
)

// For any messages of a call, in any chunks: nothing panics, nothing follows a reply, and the
// request is not left in flight. Each message that an engine gets is complete and names the
// admitted model, even to a parser that uses the last of duplicate fields.
func FuzzCall(f *testing.F) {
	frame := func(messages ...string) (all []byte) {
		for _, m := range messages {
			all = append(binary.BigEndian.AppendUint32(append(all, 0), uint32(len(m))), m...)
		}
		return all
	}
	const llama, sql = "\x0a\x05llama", "\x0a\x0btext-to-sql"
	for _, body := range [][]byte{
		frame(llama), frame(sql, sql+"\x1a\x01x", "\x1a\x01y"), frame(llama, sql), frame(sql + sql), frame(""), frame("\x1a\x01x", llama),
		frame(llama)[:9],
	} {
		f.Add(byte(0), []byte{3, 200}, body)
		f.Add(byte(5), []byte{0, 1, 255}, body)
	}
	fl := newFleet()
	fl.ApplyPlacement(endpointstate.PlacementUpdate{All: true})
	var servers [2]*stream.Server
	for i := range servers {
		servers[i], _ = newServer(f, fl, func(c *stream.Config) {
			if c.Observe = nil; i == 1 {
				c.Flow = flow.New(flow.Config{View: fl.View, MaxQueued: 10, MaxBytes: 1 << 20})
			}
		})
	}
	f.Fuzz(func(t *testing.T, how byte, cuts, body []byte) {
		x := servers[how&1].Exchange(stream.Own, "", 0)
		headers := []*corev3.HeaderValue{
			{Key: ":method", RawValue: []byte("POST")},
			{Key: "content-type", RawValue: []byte("application/grpc")},
			{Key: ":path", RawValue: []byte("/inference.GRPCInferenceService/ModelStreamInfer")},
		}
		if how&2 != 0 {
			headers = append(headers, &corev3.HeaderValue{Key: "mm-model-id", RawValue: []byte("text-to-sql")})
		}
		if how&4 != 0 {
			headers = append(headers, &corev3.HeaderValue{Key: "grpc-encoding", RawValue: []byte("gzip")})
		}
		modes := &extprocv3.ProtocolConfiguration{RequestBodyMode: extprocfilterv3.ProcessingMode_NONE}
		messages := []*extprocv3.ProcessingRequest{{ProtocolConfig: modes, Request: &extprocv3.ProcessingRequest_RequestHeaders{
			RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: headers}},
		}}}
		piece := func(part []byte, end bool) {
			messages = append(messages, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
				RequestBody: &extprocv3.HttpBody{Body: part, EndOfStream: end},
			}})
		}
		for rest, i := body, 0; i < min(len(cuts), 16) && len(rest) > 0; i++ {
			n := min(int(cuts[i]), len(rest))
			if rest = rest[n:]; i == len(cuts)-1 {
				n += len(rest)
			}
			piece(body[:n], false)
			body = body[n:]
		}
		if how&16 != 0 {
			messages = append(messages, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{}})
		} else {
			piece(body, true)
		}
		now := time.Now()
		var out []byte
		var model string
		replied := false
		for _, m := range messages {
			answers, err := x.Receive(m, now)
			if err != nil {
				t.Fatal(err)
			}
			if x.Waits() != "" {
				answers = append(answers, x.Expire()...)
			}
			for _, a := range answers {
				if replied {
					t.Fatalf("after a reply: %v", a)
				}
				replied = a.GetImmediateResponse() != nil
				for _, h := range a.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
					if h.GetHeader().GetKey() == "mm-model-id" {
						model = string(h.GetHeader().GetRawValue())
					}
				}
				out = append(out, a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()...)
			}
		}
		for len(out) > 0 {
			if len(out) < 5 || len(out)-5 < int(binary.BigEndian.Uint32(out[1:])) {
				t.Fatalf("a part of a message is forwarded: %q", out)
			}
			message := out[5 : 5+binary.BigEndian.Uint32(out[1:])]
			if named, ok := lastString(message); out[0] == 0 && (!ok || named != model) {
				t.Fatalf("a message is for %q, and the call for %q: %q", named, model, message)
			}
			out = out[5+len(message):]
		}
		x.End(now)
		x.ReleaseLease()
		if n := inFlight(fl); n != 0 || fl.Leases().Current != 0 {
			t.Fatalf("%d calls are left in flight", n)
		}
	})
}

// lastString returns the last string in field 1 of a message, and whether the message is valid.
func lastString(message []byte) (last string, ok bool) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return "", false
		}
		message = message[n:]
		if number == 1 && kind == protowire.BytesType {
			text, _ := protowire.ConsumeBytes(message)
			last = string(text)
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return "", false
		}
		message = message[n:]
	}
	return last, true
}
