package processing_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	difference "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/extproc/processing"
)

// Random responses have the same bytes as those of generated code, apart from the order of maps.
func TestResponsesAreWrittenAsByGeneratedCode(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range *mutations {
		m, want := response(rng)
		got, err := m.Append([]byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		got, is := bytes.CutPrefix(got, []byte("before"))
		var read extprocv3.ProcessingResponse
		if err := proto.Unmarshal(got, &read); err != nil || !is {
			t.Fatalf("%x is invalid: %v", got, err)
		}
		if !proto.Equal(want, &read) {
			t.Fatalf("%x (-generated code +got):\n%s", got, difference.Diff(want, &read, protocmp.Transform()))
		}
		if generated := encode(t, want); len(generated) != len(got) || want.DynamicMetadata == nil && !bytes.Equal(generated, got) {
			t.Fatalf("%x, generated code has %x", got, generated)
		}
		if !bytes.Equal(m.Encode().Encoded(), got) {
			t.Fatalf("in advance it is encoded as %x, not %x", m.Encode().Encoded(), got)
		}
	}
}

// Bodies and texts around all sizes at which a length gets longer are written as by generated code.
func TestSizesOfResponses(t *testing.T) {
	for _, limit := range []int{1 << 7, 1 << 14, 1 << 21} {
		for size := limit - 80; size < limit+3; size++ {
			body := bytes.Repeat([]byte("b"), size)
			m := &processing.Response{Part: processing.RequestBody, Changes: &processing.Changes{Replaces: true, Body: body}}
			got, err := m.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			want := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
				RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
					Mutation: &extprocv3.BodyMutation_Body{Body: body},
				}}},
			}}
			if !bytes.Equal(got, encode(t, want)) {
				t.Fatalf("a body of %d bytes is written in another way", size)
			}
			if limit > 1<<14 {
				continue
			}
			var s processing.Struct
			at := s.Begin("key")
			s.Text("text", string(body))
			s.End(at)
			inner := &structpb.Struct{Fields: map[string]*structpb.Value{"text": structpb.NewStringValue(string(body))}}
			outer := &structpb.Struct{Fields: map[string]*structpb.Value{"key": structpb.NewStructValue(inner)}}
			got, err = (&processing.Response{Metadata: s}).Append(nil)
			if err != nil || !bytes.Equal(got, encode(t, &extprocv3.ProcessingResponse{DynamicMetadata: outer})) {
				t.Fatalf("a text of %d bytes is written in another way: %v", size, err)
			}
		}
	}
}

// Names and texts must be UTF-8, as generated code demands. Values of headers may have any bytes.
func TestResponsesAreText(t *testing.T) {
	var metadata, key processing.Struct
	metadata.Text("key", "\xff")
	key.Text("\xff", "text")
	for name, m := range map[string]*processing.Response{
		"a header to set":    {Part: processing.RequestHeaders, Changes: &processing.Changes{Set: []processing.Header{{Name: "\xff"}}}},
		"a header to remove": {Part: processing.RequestHeaders, Changes: &processing.Changes{Remove: []string{"\xff"}}},
		"details":            {Immediate: &processing.Immediate{Details: "\xff"}},
		"metadata":           {Metadata: metadata},
		"a key of metadata":  {Metadata: key},
	} {
		if _, err := m.Append(nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// response returns a random response in both forms.
func response(rng *rand.Rand) (m *processing.Response, want *extprocv3.ProcessingResponse) {
	m, want = &processing.Response{}, &extprocv3.ProcessingResponse{}
	odd := func() bool { return rng.IntN(2) > 0 }
	text := func() string { return strings.Repeat("t", []int{0, 1, 20, 118, 130, 300}[rng.IntN(6)]) }
	body := func() []byte { return bytes.Repeat([]byte{0xff}, []int{0, 1, 100, 20_000}[rng.IntN(4)]) }
	lines := func() (all []processing.Header, values []*corev3.HeaderValue, options []*corev3.HeaderValueOption) {
		for range rng.IntN(4) {
			h := processing.Header{Name: text(), Value: text() + "\xff"}
			value := &corev3.HeaderValue{Key: h.Name, RawValue: []byte(h.Value)}
			all, values = append(all, h), append(values, value)
			options = append(options, &corev3.HeaderValueOption{
				Header: value, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
			})
		}
		return all, values, options
	}
	mutation := func(set []*corev3.HeaderValueOption, remove []string) *extprocv3.HeaderMutation {
		if len(set)+len(remove) == 0 {
			return nil
		}
		return &extprocv3.HeaderMutation{SetHeaders: set, RemoveHeaders: remove}
	}
	var common *extprocv3.CommonResponse
	if odd() {
		c := &processing.Changes{ClearRouteCache: odd()}
		common = &extprocv3.CommonResponse{ClearRouteCache: c.ClearRouteCache}
		var options []*corev3.HeaderValueOption
		c.Set, _, options = lines()
		for range rng.IntN(3) {
			c.Remove = append(c.Remove, text())
		}
		common.HeaderMutation = mutation(options, c.Remove)
		switch rng.IntN(3) {
		case 0:
			c.Replaces, c.Body = true, body()
			common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: c.Body}}
		case 1:
			c.Streams, c.Body, c.End = true, body(), odd()
			common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
				StreamedResponse: &extprocv3.StreamedBodyResponse{Body: c.Body, EndOfStream: c.End},
			}}
		}
		m.Changes = c
	}
	switch m.Part = processing.Part(1 + rng.IntN(8)); m.Part {
	case processing.RequestHeaders:
		want.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}}
	case processing.ResponseHeaders:
		want.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: common}}
	case processing.RequestBody:
		want.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}}
	case processing.ResponseBody:
		want.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{Response: common}}
	case processing.RequestTrailers:
		want.Response = &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}
	case processing.ResponseTrailers:
		want.Response = &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}
	case 1:
		m.Part, m.Changes = 0, nil
		i := &processing.Immediate{Status: rng.IntN(600), Body: body(), Call: odd(), Details: text()}
		var options []*corev3.HeaderValueOption
		i.Set, _, options = lines()
		is := &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(i.Status)},
			Headers: mutation(options, nil), Body: i.Body, Details: i.Details,
		}
		if i.Call {
			i.Code = uint32(rng.IntN(17))
			is.GrpcStatus = &extprocv3.GrpcStatus{Status: i.Code}
		}
		m.Immediate, want.Response = i, &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: is}
	default:
		m.Part, m.Changes = 0, nil
		s, is := &processing.Streamed{}, &extprocv3.StreamedImmediateResponse{}
		all, values, _ := lines()
		switch {
		case len(all) == 0:
			s.Body = body()
			is.Response = &extprocv3.StreamedImmediateResponse_BodyResponse{BodyResponse: &extprocv3.StreamedBodyResponse{Body: s.Body}}
		case odd():
			s.Headers = all
			is.Response = &extprocv3.StreamedImmediateResponse_HeadersResponse{
				HeadersResponse: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: values}},
			}
		default:
			s.Trailers = all
			is.Response = &extprocv3.StreamedImmediateResponse_TrailersResponse{TrailersResponse: &corev3.HeaderMap{Headers: values}}
		}
		m.Streamed, want.Response = s, &extprocv3.ProcessingResponse_StreamedImmediateResponse{StreamedImmediateResponse: is}
	}
	if odd() {
		want.ModeOverride = &extprocfilterv3.ProcessingMode{RequestBodyMode: extprocfilterv3.ProcessingMode_BUFFERED}
		m.Mode, _ = proto.Marshal(want.ModeOverride)
	}
	if odd() {
		m.Timeout = time.Duration(rng.Int64N(int64(time.Hour)))
		want.OverrideMessageTimeout = durationpb.New(m.Timeout)
	}
	if odd() {
		want.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{"first": structpb.NewBoolValue(true)}}
		m.Metadata.Bool("first", true)
		fill(rng, &m.Metadata, want.DynamicMetadata, 3)
	}
	return m, want
}

// fill adds random values to both Structs, and up to depth Structs in each other.
func fill(rng *rand.Rand, to *processing.Struct, is *structpb.Struct, depth int) {
	for i := range rng.IntN(5) {
		key := strings.Repeat("k", rng.IntN(2)*120) + strconv.Itoa(i)
		switch rng.IntN(4) {
		case 0:
			v := strings.Repeat("é", rng.IntN(2)*70)
			to.Text(key, v)
			is.Fields[key] = structpb.NewStringValue(v)
		case 1:
			v := []float64{0, -1, 0.5, math.MaxFloat64, math.Inf(1)}[rng.IntN(5)]
			to.Number(key, v)
			is.Fields[key] = structpb.NewNumberValue(v)
		case 2:
			v := rng.IntN(2) > 0
			to.Bool(key, v)
			is.Fields[key] = structpb.NewBoolValue(v)
		case 3:
			if depth == 0 {
				continue
			}
			inner := &structpb.Struct{Fields: map[string]*structpb.Value{}}
			at := to.Begin(key)
			fill(rng, to, inner, depth-1)
			to.End(at)
			is.Fields[key] = structpb.NewStructValue(inner)
		}
	}
}

// A decision costs no allocation beside those for its content.
func TestResponsesCostNoAllocations(t *testing.T) {
	metadata := processing.NewStruct(200)
	at := metadata.Begin("envoy.lb")
	metadata.Text("x-gateway-destination-endpoint", "10.0.0.1:8000")
	metadata.End(at)
	m := &processing.Response{
		Part: processing.RequestBody, Metadata: metadata,
		Changes: &processing.Changes{Set: []processing.Header{{Name: "x-gateway-destination-endpoint", Value: "10.0.0.1:8000"}}},
	}
	room := make([]byte, 0, 1<<10)
	if got := testing.AllocsPerRun(100, func() { _, _ = m.Append(room) }); got > 0 {
		t.Errorf("it costs %.0f allocations", got)
	}
}
