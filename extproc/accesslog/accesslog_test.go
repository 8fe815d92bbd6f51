package accesslog_test

import (
	"context"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/accesslog"
	"github.com/headgate/headgate/extproc/codec"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
)

// record reads a record that Envoy 1.40.0 sent with the project's envoy.yaml.
func record(t testing.TB, name string) *accesslogdatav3.HTTPAccessLogEntry {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var entry accesslogdatav3.HTTPAccessLogEntry
	if err := protojson.Unmarshal(text, &entry); err != nil {
		t.Fatal(err)
	}
	return &entry
}

// message returns a message with records.
func message(entries ...*accesslogdatav3.HTTPAccessLogEntry) *accesslogv3.StreamAccessLogsMessage {
	return &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
		HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: entries},
	}}
}

// encode returns the bytes of a message, which are the same in each run.
func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

// read returns the outcome of a record.
func read(t testing.TB, entry *accesslogdatav3.HTTPAccessLogEntry) (o outcome.Outcome) {
	t.Helper()
	var all accesslog.Entries
	if err := all.Decode(encode(t, message(entry))); err != nil {
		t.Fatal(err)
	}
	all.Pass(func(got outcome.Outcome) { o = got }, func(outcome.Progress) { t.Fatal("the request is in flight") })
	return o
}

var compareValues = cmp.Comparer(func(a, b engine.Value) bool { return a == b })

func TestRecordsOfARealEnvoy(t *testing.T) {
	const route, pool, endpoint = "default/llama", "default/llama", "127.0.0.11:8000"
	for name, want := range map[string]outcome.Outcome{
		"stream": {
			Route: "default/sql", Pool: pool, Model: "sql", Stream: true, Endpoint: endpoint, Status: 200, Attempts: 1,
			FirstBody: 17839 * time.Microsecond, Gateway: 1434 * time.Microsecond, Prompt: engine.Known(1), Completion: engine.Known(5),
		},
		"status-500": {
			Route: route, Pool: pool, Model: "llama", Stream: true, Endpoint: endpoint, Status: 500, Attempts: 1,
			FirstBody: 30118 * time.Microsecond, Gateway: 29977 * time.Microsecond,
		},
		"client-gone": {
			Route: "default/sql", Pool: pool, Model: "sql", Stream: true, Endpoint: endpoint, Status: 200, Attempts: 1,
			Failure: outcome.ClientGone, FirstBody: 16979 * time.Microsecond, Gateway: 3721 * time.Microsecond,
		},
		"refused": {
			Route: route, Pool: pool, Model: "llama", Endpoint: endpoint, Status: 503, Attempts: 2, Failure: outcome.Refused,
		},
		"reset": {
			Route: route, Pool: pool, Model: "llama", Endpoint: endpoint, Status: 503, Attempts: 1, Failure: outcome.Reset,
			Gateway: 970 * time.Microsecond,
		},
		"reset-stream": {
			Route: route, Pool: pool, Model: "llama", Stream: true, Endpoint: endpoint, Status: 200, Attempts: 1, Failure: outcome.Reset,
			FirstBody: 115509 * time.Microsecond, Gateway: 40112 * time.Microsecond,
		},
		"decided": {
			Route: "default/a02", Pool: "default/pool", Model: "a02", Stream: true, ID: "2lgv3hauryk4f-3", Endpoint: "127.82.2.12:8000",
			Status: 200, Attempts: 1, FirstBody: 24736 * time.Microsecond, Gateway: 2991 * time.Microsecond,
			Prompt: engine.Known(1), Completion: engine.Known(9), Bytes: 1, Expected: 24100 * time.Microsecond, Adapter: "storage",
			Answered: 38790 * time.Microsecond,
		},
		"replied":    {Status: 404, ByExtproc: true},
		"healthz":    {Status: 200, ByEnvoy: true},
		"no-extproc": {Status: 503, Attempts: 1, Failure: outcome.NoEndpoint},
	} {
		got := read(t, record(t, name))
		if got.Duration <= 0 {
			t.Errorf("%s: no duration", name)
		}
		if got.Began.Year() != 2026 {
			t.Errorf("%s: the request began at %v", name, got.Began)
		}
		got.Duration, got.Began = 0, time.Time{}
		if diff := cmp.Diff(want, got, compareValues); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The picks that did not serve are derived from the list of picks, the number of attempts and the
// engines' answers.
func TestPicksThatDidNotServe(t *testing.T) {
	const a, b, c = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"
	for _, l := range []struct {
		name, record, picks, served, elsewhere, missing string
		attempts                                        uint32
		endpoint                                        string
		saidElsewhere, unreached                        []string
	}{
		{name: "the first serves", record: "stream", picks: a + "," + b, served: a, attempts: 1, endpoint: a},
		{name: "the second serves", record: "stream", picks: a + "," + b, served: b, attempts: 2, endpoint: b, unreached: []string{a}},
		{
			name: "the first is full", record: "stream", picks: a + "," + b, served: b, elsewhere: a, attempts: 2, endpoint: b,
			saidElsewhere: []string{a},
		},
		{
			name: "one is full, one gone", record: "stream", picks: a + "," + b + "," + c, served: c, elsewhere: a, attempts: 3, endpoint: c,
			saidElsewhere: []string{a}, unreached: []string{b},
		},
		{
			name: "one lacks the model, one is gone", record: "stream", picks: a + "," + b + "," + c, served: c, missing: a, attempts: 3,
			endpoint: c, unreached: []string{b},
		},
		{name: "Envoy does not know the first", record: "stream", picks: a + "," + b, served: b, attempts: 1, endpoint: b},
		{name: "the last fails too", record: "refused", picks: a + "," + b, served: b, attempts: 2, endpoint: b, unreached: []string{a}},
		{
			name: "the relay sends it once more", record: "stream", picks: a + "," + b + ",/run/inner.sock", served: "/run/inner.sock",
			elsewhere: a, attempts: 3, saidElsewhere: []string{a}, unreached: []string{b},
		},
		{
			name: "the relay has a call for several models", record: "stream", picks: "/run/inner.sock", served: "/run/inner.sock",
			attempts: 1,
		},
		{name: "none is left", record: "no-extproc", picks: a + "," + b, attempts: 3, endpoint: a, unreached: []string{a, b}},
		{
			name: "none is left, all full", record: "no-extproc", picks: a + "," + b, elsewhere: a + "," + b, attempts: 3, endpoint: a,
			saidElsewhere: []string{a, b},
		},
		{name: "Envoy knows none", record: "no-extproc", picks: a + "," + b, attempts: 1, endpoint: a},
	} {
		entry := record(t, l.record)
		common := entry.CommonProperties
		common.UpstreamRequestAttemptCount = l.attempts
		common.UpstreamRemoteAddress = nil
		if host, _, found := strings.Cut(l.served, ":"); found {
			common.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_SocketAddress{
				SocketAddress: &corev3.SocketAddress{
					Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80},
				},
			}}
		}
		if strings.HasPrefix(l.served, "/") {
			common.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: l.served}}}
		}
		common.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"envoy.lb": {Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint": structpb.NewStringValue(l.picks)}},
			"gateway.usage": {Fields: map[string]*structpb.Value{
				"elsewhere": structpb.NewStringValue(l.elsewhere),
				"missing":   structpb.NewStringValue(l.missing),
			}},
		}}
		o := read(t, entry)
		if o.Endpoint != l.endpoint || !slices.Equal(o.Elsewhere, l.saidElsewhere) || !slices.Equal(o.Unreached, l.unreached) {
			t.Errorf("%s: %s, elsewhere %v, unreached %v", l.name, o.Endpoint, o.Elsewhere, o.Unreached)
		}
	}
}

// Errors that Envoy itself causes count against no endpoint: neither against one that never got the
// request, nor against one whose answer is too large for Envoy.
func TestEnvoysOwnErrorsCountAgainstNoEndpoint(t *testing.T) {
	for _, c := range []struct {
		details  string
		attempts uint32
		endpoint string
		faulty   bool
	}{
		{"header_mutation_result_exceeds_limit", 0, "", false},
		{"response_payload_too_large", 1, "127.0.0.11:8000", false},
		{"via_upstream", 1, "127.0.0.11:8000", true},
	} {
		entry := record(t, "status-500")
		entry.Response.ResponseCodeDetails = c.details
		entry.CommonProperties.UpstreamRequestAttemptCount = c.attempts
		if c.attempts == 0 {
			entry.CommonProperties.UpstreamRemoteAddress = nil
		}
		o := read(t, entry)
		if o.Endpoint != c.endpoint || o.Faulty() != c.faulty || o.Well() || len(o.Suspicious()) > 0 || o.ByEnvoy == c.faulty {
			t.Errorf("%s: the details %q, faulty %v, %+v", c.details, o.Endpoint, o.Faulty(), o)
		}
	}
}

// The gateway overhead excludes the queue time, even if the reported queue time is implausible.
func TestQueueTimeIsNotGatewayOverhead(t *testing.T) {
	for _, c := range []struct {
		tag  string
		hold *structpb.Value
		want time.Duration
	}{
		{"1434", nil, 1434 * time.Microsecond},
		{"501434", structpb.NewNumberValue(500_000), 1434 * time.Microsecond},
		{"1434", structpb.NewNumberValue(500_000), 0}, // an implausible queue time
		{"1434", structpb.NewNumberValue(-500_000), 1434 * time.Microsecond},
		{"1434", structpb.NewStringValue("500000"), 1434 * time.Microsecond},
		{"-", structpb.NewNumberValue(500_000), 0}, // the request was not sent to an endpoint
	} {
		entry := record(t, "stream")
		entry.CommonProperties.CustomTags["gateway_us"] = c.tag
		if c.hold != nil {
			entry.CommonProperties.Metadata.FilterMetadata["gateway.pick"].Fields["hold_us"] = c.hold
		}
		if got := read(t, entry).Gateway; got != c.want {
			t.Errorf("with %s us and a queue time of %v the gateway overhead is %v, want %v", c.tag, c.hold, got, c.want)
		}
	}
}

// Envoy passes the whole error of a stream, and extproc reads its message. An error without a type
// has the type "unknown".
func TestErrorsOfStreams(t *testing.T) {
	for whole, want := range map[string][2]string{
		`{"message":"a prompt","code":500}`: {"unknown", "a prompt"},
		"a prompt":                          {"unknown", "a prompt"},
		"":                                  {"", ""},
	} {
		entry := record(t, "stream")
		entry.CommonProperties.Metadata.FilterMetadata[wire.ErrorNamespace] = &structpb.Struct{Fields: map[string]*structpb.Value{
			wire.ErrorWhole: structpb.NewStringValue(whole),
		}}
		if o := read(t, entry); o.ErrorType != want[0] || o.ErrorMessage != want[1] || o.Faulty() != (whole != "") {
			t.Errorf("%s: type %q, message %q, faulty %v", whole, o.ErrorType, o.ErrorMessage, o.Faulty())
		}
	}
}

func TestInvalidLoadReports(t *testing.T) {
	entry := record(t, "stream")
	usage := entry.CommonProperties.Metadata.FilterMetadata["gateway.usage"]
	usage.Fields["load"] = structpb.NewStringValue("TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.5")
	usage.Fields["prompt"] = structpb.NewStringValue("many")
	entry.CommonProperties.CustomTags["first_body_us"] = "-"
	entry.CommonProperties.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_SocketAddress{
		SocketAddress: &corev3.SocketAddress{
			Address: "fd00::1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8000},
		},
	}}
	got := read(t, entry)
	if w := got.Load.Waiting.Or(-1); w != 3 || got.Load.KVUsage.Or(-1) != 0.5 || got.Load.Running.Or(-1) != -1 {
		t.Errorf("the load is %+v", got.Load)
	}
	if _, known := got.Prompt.Get(); known || got.FirstBody != 0 || got.Endpoint != "[fd00::1]:8000" {
		t.Errorf("%+v", got)
	}
	if got.Bytes != 0 || got.Expected != 0 {
		t.Errorf("without a prediction: %d bytes and %v", got.Bytes, got.Expected)
	}
	decided := entry.CommonProperties.Metadata.FilterMetadata["gateway.pick"]
	decided.Fields["prompt_bytes"] = structpb.NewNumberValue(4000)
	decided.Fields["first_token_us"] = structpb.NewNumberValue(120_000)
	if got := read(t, entry); got.Bytes != 4000 || got.Expected != 120*time.Millisecond {
		t.Errorf("with a prediction: %d bytes and %v", got.Bytes, got.Expected)
	}
	decided.Fields["adapter"], decided.Fields["load_us"] = structpb.NewStringValue("host"), structpb.NewNumberValue(20_000)
	if got := read(t, entry); got.Adapter != "host" || got.Loading != 20*time.Millisecond {
		t.Errorf("with an adapter: %q and %v", got.Adapter, got.Loading)
	}
	if got := read(t, entry); got.Among != 0 || got.Answered != 0 {
		t.Errorf("with tokens: %d and %v", got.Among, got.Answered)
	}
	decided.Fields["among"], entry.CommonProperties.CustomTags["answered_us"] = structpb.NewNumberValue(3), "30000"
	if got := read(t, entry); got.Among != 3 || got.Answered != 30*time.Millisecond {
		t.Errorf("without tokens: %d and %v", got.Among, got.Answered)
	}
	usage.Fields["load"] = structpb.NewStringValue("BIN x")
	if got := read(t, entry); got.Load.Waiting.Or(-1) != -1 {
		t.Errorf("an invalid load report is read as %+v", got.Load)
	}
	if diff := cmp.Diff(outcome.Outcome{}, read(t, &accesslogdatav3.HTTPAccessLogEntry{}), compareValues); diff != "" {
		t.Errorf("an empty record is read as (-want +got):\n%s", diff)
	}
}

func TestEveryRecordOfAStreamIsObserved(t *testing.T) {
	got, lives := make(chan outcome.Outcome, 10), make(chan string, 10)
	l := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec.New()))
	outcomes := accesslog.NewServer(func(o outcome.Outcome) { got <- o }, func(p outcome.Progress) { lives <- p.ID })
	outcomes.Register(server)
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := accesslogv3.NewAccessLogServiceClient(conn).StreamAccessLogs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range []string{"stream refused", "reset"} {
		// A periodic record of a request in flight yields progress and no outcome.
		goes := record(t, "stream")
		goes.CommonProperties.AccessLogType = accesslogdatav3.AccessLogType_DownstreamPeriodic
		goes.CommonProperties.Metadata.FilterMetadata[wire.PickNamespace].Fields[wire.PickID] = structpb.NewStringValue(names)
		entries := []*accesslogdatav3.HTTPAccessLogEntry{goes}
		for name := range strings.FieldsSeq(names) {
			entries = append(entries, record(t, name))
		}
		if err := stream.Send(message(entries...)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []outcome.Failure{outcome.None, outcome.Refused, outcome.Reset} {
		if o := <-got; o.Failure != want {
			t.Errorf("observed %q, want %q", o.Failure, want)
		}
	}
	for _, want := range []string{"stream refused", "reset"} {
		if id := <-lives; id != want {
			t.Errorf("progress is %q, want %q", id, want)
		}
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Errorf("at the end of the stream: %v", err)
	}
	// Close returns although Envoy never closes its streams.
	for range 2 {
		stream, err := accesslogv3.NewAccessLogServiceClient(conn).StreamAccessLogs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		outcomes.Close()
		if err := stream.RecvMsg(new(accesslogv3.StreamAccessLogsResponse)); status.Code(err) != codes.Unavailable {
			t.Errorf("at the end of a stream that the server closed: %v", err)
		}
	}
	server.GracefulStop()
	_ = conn.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The time of the first output comes from the wall clock; an implausible time is treated as
// unknown.
func TestWhenTheFirstOutputCame(t *testing.T) {
	whole := record(t, "stream").GetCommonProperties()
	sent := whole.GetStartTime().AsTime().Add(whole.GetTimeToLastRxByte().AsDuration())
	after := func(d time.Duration) string { return strconv.FormatInt(sent.Add(d).UnixMicro(), 10) }
	first := 17839 * time.Microsecond // time to the first byte
	for name, c := range map[string]struct {
		output, opened string
		want           time.Duration
	}{
		"with the first byte":       {"", "", first},
		"later":                     {after(100 * time.Millisecond), "", 100 * time.Millisecond},
		"just after a role":         {after(100 * time.Millisecond), after(99 * time.Millisecond), 100 * time.Millisecond},
		"long after a role":         {after(100 * time.Millisecond), after(50 * time.Millisecond), 0},
		"never":                     {wire.NoOutput, "", 0},
		"never, after a role":       {wire.NoOutput, after(first), 0},
		"the clock was set back":    {after(-time.Hour), "", 0},
		"the clock was set forward": {after(time.Hour), "", 0},
		"no number":                 {"soon", "", 0},
	} {
		entry := record(t, "stream")
		usage := entry.CommonProperties.Metadata.FilterMetadata[wire.UsageNamespace].Fields
		if c.output != "" {
			usage[wire.UsageOutput] = structpb.NewStringValue(c.output)
		}
		if c.opened != "" {
			usage[wire.UsageOpened] = structpb.NewStringValue(c.opened)
		}
		if got := read(t, entry).FirstBody; (got - c.want).Abs() > time.Microsecond {
			t.Errorf("%s: first output after %v, want %v", name, got, c.want)
		}
	}
}
