package processing_test

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/processing"
	"github.com/headgate/headgate/test/mutate"
)

var mutations = flag.Int("mutations", 5000, "number of mutated messages that TestRequestsAreReadAsByGeneratedCode reads")

// Mutated messages are read as generated code reads them. They are refused exactly if generated
// code refuses the parts that extproc uses.
func TestRequestsAreReadAsByGeneratedCode(t *testing.T) {
	mutate.Compare(t, requests(t), *mutations, func(message []byte) bool { return compare(t, message) })
}

// A message that ends too early anywhere is read as generated code reads it.
func TestTruncatedRequests(t *testing.T) {
	for _, message := range requests(t) {
		for end := range message[:min(len(message), 2000)] {
			compare(t, message[:end])
		}
	}
}

// Fields that are repeated or in another order are merged or replaced as by generated code.
func TestRepeatedParts(t *testing.T) {
	all := requests(t)
	for _, first := range all {
		for _, second := range all {
			compare(t, slices.Concat(first, second))
		}
	}
	for _, first := range values {
		for _, second := range values {
			value := within(slices.Concat(encode(t, first), encode(t, second)), 2)
			for _, key := range [][2]string{
				{wire.RequestNamespace, wire.RequestModel},
				{wire.SubsetNamespace, wire.SubsetKey},
				{wire.DestinationNamespace, wire.ServedKey},
				{wire.UsageNamespace, wire.UsageAnswered},
			} {
				member := within(append(within([]byte(key[1]), 1), value...), 1, 2) // fields of a Struct
				entry := within(append(member, within([]byte(key[0]), 1)...), 1)    // filter_metadata, with its key at the end
				compare(t, within(entry, 8))                                        // metadata_context
				compare(t, within(slices.Concat(entry, within(within([]byte(key[0]), 1), 1)), 8))
			}
		}
	}
}

// FuzzRequests compares the reader with generated code.
func FuzzRequests(f *testing.F) {
	for _, message := range requests(f) {
		f.Add(message)
	}
	f.Fuzz(func(t *testing.T, message []byte) { compare(t, message) })
}

// compare reads a message in both ways, and reports whether it is valid.
func compare(t *testing.T, message []byte) (valid bool) {
	t.Helper()
	var oracle, whole extprocv3.ProcessingRequest
	invalid := proto.Unmarshal(used.Parts(oracle.ProtoReflect().Descriptor(), message), &oracle)
	buffer := slices.Clone(message)
	var got processing.Request
	if err := got.Decode(buffer); (err == nil) != (invalid == nil) {
		t.Fatalf("%x: the error is %v, generated code has %v", message, err, invalid)
	}
	if invalid != nil {
		return false
	}
	got.Body = slices.Clone(got.Body)
	for i := range buffer { // only the body may refer to it
		buffer[i] = 0xa5
	}
	for of, want := range map[string]*processing.Request{"the used parts": read(&oracle), "the whole message": nil} {
		if want == nil {
			if proto.Unmarshal(message, &whole) != nil {
				continue // the fault is in a part that is not used
			}
			want = read(&whole)
		}
		if view, wanted := fmt.Sprintf("%+v", exported(&got)), fmt.Sprintf("%+v", exported(want)); view != wanted {
			t.Fatalf("%x: generated code on %s reads\n%s, not\n%s", message, of, wanted, view)
		}
	}
	return true
}

// exported returns a message without what only its package sees.
func exported(m *processing.Request) any {
	return []any{m.Part, m.Headers, string(m.Body), m.End, m.Config, m.Metadata}
}

// read converts a message of generated code.
func read(m *extprocv3.ProcessingRequest) *processing.Request {
	is := &processing.Request{}
	headers := func(part processing.Part, h *extprocv3.HttpHeaders) {
		is.Part, is.End = part, h.GetEndOfStream()
		for _, line := range h.GetHeaders().GetHeaders() {
			is.Headers = append(is.Headers, processing.Header{
				Name: line.GetKey(), Value: cmp.Or(string(line.GetRawValue()), line.GetValue()),
			})
		}
	}
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		headers(processing.RequestHeaders, r.RequestHeaders)
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		headers(processing.ResponseHeaders, r.ResponseHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		is.Part, is.Body, is.End = processing.RequestBody, r.RequestBody.GetBody(), r.RequestBody.GetEndOfStream()
	case *extprocv3.ProcessingRequest_ResponseBody:
		is.Part, is.Body, is.End = processing.ResponseBody, r.ResponseBody.GetBody(), r.ResponseBody.GetEndOfStream()
	case *extprocv3.ProcessingRequest_RequestTrailers:
		is.Part = processing.RequestTrailers
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		is.Part = processing.ResponseTrailers
	}
	if c := m.GetProtocolConfig(); c != nil {
		is.Config = processing.Config{
			Announced: true, RequestBodyMode: int32(c.GetRequestBodyMode()), ResponseBodyMode: int32(c.GetResponseBodyMode()),
		}
	}
	at := func(namespace, key string) *structpb.Value {
		return m.GetMetadataContext().GetFilterMetadata()[namespace].GetFields()[key]
	}
	if v := at(wire.RequestNamespace, wire.RequestModel); v != nil {
		is.Metadata.Model = processing.Text{Known: true, Text: v.GetStringValue()}
	}
	if v := at(wire.DestinationNamespace, wire.ServedKey); v != nil {
		is.Metadata.Served = processing.Text{Known: true, Text: v.GetStringValue()}
	}
	if v := at(wire.UsageNamespace, wire.UsageAnswered); v != nil {
		is.Metadata.Answered = processing.Flag{Known: true, Set: v.GetBoolValue()}
	}
	if v := at(wire.SubsetNamespace, wire.SubsetKey); v != nil {
		is.Metadata.Subset.Known = true
		if s, ok := v.GetKind().(*structpb.Value_StringValue); ok {
			is.Metadata.Subset.Texts = []string{s.StringValue}
		}
		for _, item := range v.GetListValue().GetValues() {
			is.Metadata.Subset.Texts = append(is.Metadata.Subset.Texts, item.GetStringValue())
		}
	}
	return is
}

// used are the parts that extproc uses. All parts of the request are used, because one replaces
// another.
var used = mutate.Used{
	Fields: map[protoreflect.FullName][]protoreflect.Name{
		"envoy.service.ext_proc.v3.ProcessingRequest": {
			"request_headers", "response_headers", "request_body", "response_body", "request_trailers", "response_trailers",
			"metadata_context", "protocol_config",
		},
		"envoy.service.ext_proc.v3.HttpHeaders": {"headers"},
		"envoy.config.core.v3.Metadata":         {"filter_metadata"},
	},
	Opaque: []protoreflect.FullName{
		"google.protobuf.Value.struct_value",
		"envoy.service.ext_proc.v3.ProcessingRequest.request_trailers", "envoy.service.ext_proc.v3.ProcessingRequest.response_trailers",
	},
	Flat: []protoreflect.FullName{"google.protobuf.Value.list_value"},
}

// values are values of all types.
var values = []*structpb.Value{
	structpb.NewNullValue(),
	structpb.NewNumberValue(7),
	structpb.NewStringValue("10.0.0.1:80"),
	structpb.NewBoolValue(true),
	structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewBoolValue(true)}}),
	structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
		structpb.NewStringValue("10.0.0.2:80"), structpb.NewNumberValue(1),
		structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStringValue("10.0.0.3:80")}}),
	}}),
	{},
}

// requests returns valid messages of each kind.
func requests(t testing.TB) (all [][]byte) {
	t.Helper()
	long := make([]byte, 300)
	lines := []*corev3.HeaderValue{
		{Key: ":method", RawValue: []byte("POST")},
		{Key: ":path", Value: "/v1/completions"},
		{Key: "x-request-id", Value: "one", RawValue: []byte("two")},
		{Key: "x-binary", RawValue: []byte("\xff\x00")},
		{Key: "x-empty"},
		{Key: "x-long", RawValue: long},
		{},
	}
	headers := &extprocv3.HttpHeaders{
		Headers: &corev3.HeaderMap{Headers: lines}, EndOfStream: true,
		Attributes: map[string]*structpb.Struct{"a": {Fields: map[string]*structpb.Value{"b": values[5]}}}, //nolint:staticcheck // deprecated
	}
	metadata := func(v *structpb.Value) *corev3.Metadata {
		spaces := map[string]*structpb.Struct{"other": {Fields: map[string]*structpb.Value{"key": values[4], "list": values[5]}}}
		for _, key := range [][2]string{
			{wire.RequestNamespace, wire.RequestModel},
			{wire.SubsetNamespace, wire.SubsetKey},
			{wire.DestinationNamespace, wire.ServedKey},
			{wire.UsageNamespace, wire.UsageAnswered},
		} {
			spaces[key[0]] = &structpb.Struct{Fields: map[string]*structpb.Value{key[1]: v, "other": v}}
		}
		return &corev3.Metadata{FilterMetadata: spaces}
	}
	trailers := &extprocv3.HttpTrailers{Trailers: &corev3.HeaderMap{Headers: lines}}
	body := &extprocv3.HttpBody{Body: []byte(`{"model":"llama"}`), EndOfStream: true}
	for _, m := range []*extprocv3.ProcessingRequest{
		{},
		{
			Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: headers},
			ProtocolConfig: &extprocv3.ProtocolConfiguration{
				RequestBodyMode:                         extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
				ResponseBodyMode:                        extprocfilterv3.ProcessingMode_BUFFERED,
				SendBodyWithoutWaitingForHeaderResponse: true,
			},
			MetadataContext: metadata(values[2]), ObservabilityMode: true,
			Attributes: map[string]*structpb.Struct{"a": {Fields: map[string]*structpb.Value{"b": values[2]}}},
		},
		{
			Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}},
			ProtocolConfig: &extprocv3.ProtocolConfiguration{},
		},
		{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: headers}, MetadataContext: metadata(values[3])},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: body}, MetadataContext: metadata(values[5])},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: long}}},
		{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: body}},
		{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: trailers}},
		{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: trailers}, MetadataContext: metadata(values[4])},
	} {
		all = append(all, encode(t, m))
	}
	return all
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	encoded, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// within returns a message in which the content is in fields of messages in each other, from the
// innermost to the outermost.
func within(content []byte, numbers ...protowire.Number) []byte {
	for _, number := range numbers {
		content = protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	return content
}

// A message costs one allocation for its headers, and one for their text. A body costs none.
func TestRequestsCostFewAllocations(t *testing.T) {
	for i, message := range requests(t) {
		var is extprocv3.ProcessingRequest
		if err := proto.Unmarshal(message, &is); err != nil {
			t.Fatal(err)
		}
		is.MetadataContext = nil // Headgate's own Envoy sends a flag at most
		message = encode(t, &is)
		var m processing.Request
		if err := m.Decode(message); err != nil {
			t.Fatal(err)
		}
		want := 0.0
		if len(m.Headers) > 0 {
			want = 2
		}
		if got := testing.AllocsPerRun(100, func() { _ = m.Decode(message) }); got > want {
			t.Errorf("message %d costs %.0f allocations, want at most %.0f", i, got, want)
		}
	}
}
