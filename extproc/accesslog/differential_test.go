package accesslog_test

import (
	"flag"
	"math"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/accesslog"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/test/mutate"
)

var mutations = flag.Int("mutations", 5000, "number of mutated messages that TestRecordsAreReadAsByGeneratedCode reads")

// Mutated messages give the same outcomes, in the same order, as generated code gives. They are
// refused exactly if generated code refuses the parts that extproc uses.
func TestRecordsAreReadAsByGeneratedCode(t *testing.T) {
	mutate.Compare(t, seeds(t), *mutations, func(message []byte) bool { return compare(t, message) })
}

// The last kind of a value counts.
func TestValuesOfSeveralKinds(t *testing.T) {
	kinds := []*structpb.Value{
		structpb.NewNullValue(),
		structpb.NewNumberValue(7),
		structpb.NewStringValue("7"),
		structpb.NewBoolValue(true),
		structpb.NewStructValue(nil),
		structpb.NewListValue(nil),
		{},
	}
	for _, key := range []string{wire.PickStream, wire.PickID, wire.PickHold} {
		for _, first := range kinds {
			for _, last := range kinds {
				value := within(slices.Concat(encode(t, first), encode(t, last)), 2)
				member := within(append(within([]byte(key), 1), value...), 1, 2) // fields of a Struct
				namespace := append(within([]byte(wire.PickNamespace), 1), member...)
				compare(t, within(namespace, 1, 17, 1, 1, 2)) // http_logs.log_entry.common_properties.metadata.filter_metadata
			}
		}
	}
}

// A message with more entries than Envoy sends is invalid: they would need much memory. Memory for
// an unusual number of entries is not kept.
func TestEntriesAreLimited(t *testing.T) {
	var all accesslog.Entries
	many := encode(t, message(slices.Repeat([]*accesslogdatav3.HTTPAccessLogEntry{{}}, accesslog.MaxEntries)...))
	if err := all.Decode(many); err != nil {
		t.Errorf("with as many as allowed: %v", err)
	}
	n := 0
	all.Pass(func(outcome.Outcome) { n++ }, nil)
	if n != accesslog.MaxEntries {
		t.Errorf("%d of %d entries are read", n, accesslog.MaxEntries)
	}
	if err := all.Decode(slices.Concat(many, within(nil, 1, 2))); err == nil {
		t.Error("with one more: no error")
	}
	all.Pass(func(outcome.Outcome) { t.Error("an entry of an invalid message is read") }, nil)
	if err := all.Decode(within(nil, 1, 2)); err != nil || all.Cap() > 1 {
		t.Errorf("then one: %v, memory for %d", err, all.Cap())
	}
}

// FuzzRecords compares the reader with generated code.
func FuzzRecords(f *testing.F) {
	for _, message := range seeds(f) {
		f.Add(message)
	}
	f.Fuzz(func(t *testing.T, message []byte) { compare(t, message) })
}

// compare reads a message in both ways, and reports whether it is valid.
func compare(t *testing.T, message []byte) (valid bool) {
	t.Helper()
	var want []any
	parts := used.Parts((*accesslogv3.StreamAccessLogsMessage)(nil).ProtoReflect().Descriptor(), message)
	invalid := plain(parts, adding[outcome.Outcome](&want), adding[outcome.Progress](&want))
	var entries accesslog.Entries
	buffer := slices.Clone(message)
	if err := entries.Decode(buffer); (err == nil) != (invalid == nil) {
		t.Fatalf("%x: the error is %v, generated code has %v", message, err, invalid)
	}
	for i := range buffer { // gRPC uses the buffer again
		buffer[i] = 0xa5
	}
	var got []any
	entries.Pass(adding[outcome.Outcome](&got), adding[outcome.Progress](&got))
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%x (-generated code +got):\n%s", message, cmp.Diff(want, got, compareValues))
	}
	var all []any
	if err := plain(message, adding[outcome.Outcome](&all), adding[outcome.Progress](&all)); err == nil && !reflect.DeepEqual(got, all) {
		t.Fatalf("%x (-generated code on the whole message +got):\n%s", message, cmp.Diff(all, got, compareValues))
	}
	return invalid == nil
}

// adding returns a function that appends its argument to a list.
func adding[T any](list *[]any) func(T) { return func(v T) { *list = append(*list, v) } }

// seeds returns valid messages: recorded ones, and some that have all parts in unusual forms.
func seeds(t testing.TB) (all [][]byte) {
	for _, name := range []string{
		"decided", "stream", "status-500", "client-gone", "refused", "reset", "reset-stream", "replied", "healthz", "no-extproc",
	} {
		all = append(all, encode(t, message(record(t, name))))
	}
	complete := record(t, "decided")
	common := complete.CommonProperties
	sent := common.GetStartTime().AsTime().Add(common.GetTimeToLastRxByte().AsDuration())
	after := func(d time.Duration) string { return strconv.FormatInt(sent.Add(d).UnixMicro(), 10) }
	common.Metadata.FilterMetadata = map[string]*structpb.Struct{
		wire.DestinationNamespace: members(t, map[string]any{
			wire.DestinationHeader: "10.0.0.1:80,10.0.0.2:80,[fd00::1]:8000,/run/inner.sock",
		}),
		wire.PickNamespace: members(t, map[string]any{
			wire.PickRoute: "default/route", wire.PickPool: "default/pool", wire.PickModel: "model", wire.PickID: "7",
			wire.PickStored: "resp_1", wire.PickEverybody: true, wire.PickAgain: true, wire.PickStream: true,
			wire.PickAdapter: "slot", wire.PickLoad: 20_000, wire.PickHold: 500, wire.PickBytes: 4000,
			wire.PickFirstToken: 120_000, wire.PickAmong: 3, wire.PickReason: "least load",
			wire.PickExpected: map[string]any{"seconds": 1}, wire.PickRunnerUp: []any{1, nil}, wire.PickWords: nil,
		}),
		wire.UsageNamespace: members(t, map[string]any{
			wire.UsagePrompt: 5, wire.UsageCompletion: math.Inf(1), wire.UsageInput: 7, wire.UsageCacheRead: 8,
			wire.UsageCacheCreation: 9, wire.UsageBegunInput: 10, wire.UsageBegunCacheRead: 11, wire.UsageBegunCacheCreation: 12,
			wire.UsageError: "server_error", wire.UsageErrorCode: "500", wire.UsageID: "resp_2",
			wire.UsageOutput: after(30 * time.Millisecond), wire.UsageOpened: after(29 * time.Millisecond),
			wire.UsageLoad:      "TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.5",
			wire.UsageElsewhere: "10.0.0.2:80,10.0.0.3:80", wire.UsageStopping: "10.0.0.2:80",
			wire.UsageMissing: "10.0.0.4:80", wire.UsageWithout: "10.0.0.1:80",
		}),
		wire.ErrorNamespace: members(t, map[string]any{
			wire.ErrorMessage: "a prompt", wire.ErrorWhole: `{"message":"a prompt é","code":500}`,
		}),
		wire.RequestNamespace: members(t, map[string]any{wire.RequestModel: "model"}),
	}
	common.CustomTags = map[string]string{
		wire.TagCall: "14", wire.TagFirstBody: "17839", wire.TagAnswered: "30000", wire.TagGateway: "-", "other": "1",
	}
	common.UpstreamRequestAttemptCount = 4
	common.ResponseFlags = &accesslogdatav3.ResponseFlags{
		DurationTimeout: true, UnauthorizedDetails: &accesslogdatav3.ResponseFlags_Unauthorized{},
	}
	complete.Response.ResponseHeaders = map[string]string{"content-type": "text/event-stream; charset=utf-8", "other": "1"}
	inside := proto.CloneOf(complete)
	inside.Response.ResponseCode = wrapperspb.UInt32(404)
	inside.CommonProperties.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_EnvoyInternalAddress{
		EnvoyInternalAddress: &corev3.EnvoyInternalAddress{EndpointId: "1"},
	}}
	named, pipe := proto.CloneOf(inside), proto.CloneOf(inside)
	named.CommonProperties.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_SocketAddress{
		SocketAddress: &corev3.SocketAddress{Address: "fd00::1", PortSpecifier: &corev3.SocketAddress_NamedPort{NamedPort: "http"}},
	}}
	pipe.CommonProperties.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_Pipe{
		Pipe: &corev3.Pipe{Path: "/run/inner.sock"},
	}}
	pipe.CommonProperties.AccessLogType = accesslogdatav3.AccessLogType_DownstreamPeriodic
	first := message(complete, inside, named, pipe, &accesslogdatav3.HTTPAccessLogEntry{})
	first.Identifier = &accesslogv3.StreamAccessLogsMessage_Identifier{Node: &corev3.Node{Id: "envoy"}, LogName: "outcome"}
	tcp := &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_TcpLogs{
		TcpLogs: &accesslogv3.StreamAccessLogsMessage_TCPAccessLogEntries{
			LogEntry: []*accesslogdatav3.TCPAccessLogEntry{{CommonProperties: common}},
		},
	}}
	for _, repeated := range [][]*accesslogdatav3.HTTPAccessLogEntry{
		{complete, named}, {complete, inside}, {pipe, complete}, {complete, pipe, record(t, "refused")},
	} {
		all = append(all, merged(t, repeated))
	}
	// Both kinds of records in one message; the last kind counts.
	both := slices.Concat(encode(t, first), encode(t, tcp))
	return append(all, encode(t, message(complete)), encode(t, message(named, pipe)), encode(t, first), encode(t, tcp), both,
		slices.Concat(both, encode(t, message(named))), nil)
}

// merged returns a message with one record, which contains the fields of all entries. Messages in
// it are merged, entries of maps are replaced, and of the kinds of an address the last one counts.
func merged(t testing.TB, entries []*accesslogdatav3.HTTPAccessLogEntry) []byte {
	t.Helper()
	var whole []byte
	for _, entry := range entries {
		whole = append(whole, encode(t, entry)...)
	}
	return within(whole, 1, 2) // http_logs.log_entry
}

// within returns a message in which the content is in fields of messages in each other, from the
// innermost to the outermost.
func within(content []byte, numbers ...protowire.Number) []byte {
	for _, number := range numbers {
		content = protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	return content
}

// members returns a namespace of dynamic metadata.
func members(t testing.TB, values map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(values)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// used are the parts that extproc uses. The other fields of a oneof are used too, because they
// replace a used one.
var used = mutate.Used{Fields: map[protoreflect.FullName][]protoreflect.Name{
	"envoy.service.accesslog.v3.StreamAccessLogsMessage": {"http_logs", "tcp_logs"},
	"envoy.data.accesslog.v3.HTTPAccessLogEntry":         {"common_properties", "response"},
	"envoy.data.accesslog.v3.AccessLogCommon": {
		"start_time", "time_to_last_rx_byte", "upstream_remote_address", "response_flags", "metadata", "custom_tags", "duration",
		"upstream_request_attempt_count", "upstream_wire_bytes_received", "access_log_type",
	},
	"envoy.data.accesslog.v3.HTTPResponseProperties": {"response_code", "response_headers", "response_code_details"},
	"envoy.config.core.v3.Metadata":                  {"filter_metadata"},
	"envoy.config.core.v3.SocketAddress":             {"address", "port_value", "named_port"},
	"envoy.config.core.v3.Pipe":                      {"path"},
}, Opaque: []protoreflect.FullName{
	"envoy.service.accesslog.v3.StreamAccessLogsMessage.tcp_logs", "envoy.config.core.v3.Address.envoy_internal_address",
	"google.protobuf.Value.struct_value", "google.protobuf.Value.list_value",
	"envoy.data.accesslog.v3.ResponseFlags.unauthorized_details",
}}
