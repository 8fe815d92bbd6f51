package stream_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/golden"
)

// TestScenarios runs scenario files. Each block is one HTTP request, and each line is a message of
// the data plane or one of these commands:
//
//	calls WHOM [conformance] [override] [default=POOL]
//	        another gateway calls WHOM, an authority or a port; without this line the data plane
//	        is Headgate's own Envoy
//	at LISTENER
//	        Headgate's own Envoy got the request at a listener of ns/g, through an LLMRoute
//	for POOL [PREFIX [WITH]]
//	        Headgate's own Envoy got the request through an HTTPRoute that names a pool, and may
//	        replace a path prefix
//	vmodels use the fleet of newFleetOfVModels
//	rpcs    use the fleet of newFleetOfRPCs
//	fallbacks
//	        use the fleet of newFleetOfFallbacks
//	headers NAME=VALUE… [end] [mode=MODE] [shown=MODE] [silent]
//	        MODE of the request's and of the response's body; silent announces no modes
//	chunk TEXT
//	        part of the request's body (Go-quoted, or as it is)
//	body TEXT
//	        the last or only part of the request's body
//	trailers
//	        trailers of the request
//	response NAME=VALUE… [end]
//	        headers of the response
//	part TEXT
//	        part of the response's body
//	answer TEXT
//	        the last or only part of the response's body
//	response-trailers
//	        trailers of the response
//	check   print where the request is in flight
//	holds   control exists but has sent nothing yet; must be the first line
//	control WORD…
//	        a message of control; the first also announces the endpoints of ns/base and ns/silent.
//	        loaded=, unloading=, gone= MODEL@ADDRESS, failed=, mended=MODEL,
//	        registered=MODEL@POOL, moved=VMODEL@MODEL, takes=METHOD:PATH@ADDRESS,
//	        all in ns/base; no MODEL means none
//	turn    the waiting request is the first in its queue and is decided again
//	expire  the wait of the request times out
//	fail    the model of the waiting request cannot be loaded
//	full    the queue is full
//
// Words that begin with @ are metadata of the message, before its text: @subset=TEXT,
// @list=TEXT;TEXT, @model=NAME, @served=ADDRESS, @answered (the response to the call has begun).
//
// The output is extproc's answers, the outcome that it reports, and the final counts.
func TestScenarios(t *testing.T) { golden.Run(t, "testdata/*.txt", scenario) }

// Each file in testdata/protocol tests the rule of the endpoint-picker protocol 1.0.0 in its name.
func TestProtocolScenarios(t *testing.T) { golden.Run(t, "testdata/protocol/*.txt", scenario) }

// Each file in testdata/defects tests the known defect of other endpoint pickers in its name.
func TestDefectScenarios(t *testing.T) { golden.Run(t, "testdata/defects/*.txt", scenario) }

func scenario(t *testing.T) func(string) string {
	return func(input string) string {
		f := newFleet()
		front, authority, port := stream.Own, "", int32(0)
		change, listener, pool := func(*stream.Config) {}, "", objects.Name{}
		var rewrite *wire.Rewrite
		lines := strings.Split(strings.TrimRight(input, "\n"), "\n")
		if rest, ok := strings.CutPrefix(lines[0], "calls "); ok {
			front, lines = stream.Gateway, lines[1:]
			authority, port, change = callee(t, strings.Fields(rest))
		}
		if rest, ok := strings.CutPrefix(lines[0], "at "); ok {
			listener, lines = "Gateway ns/g "+rest, lines[1:]
			change = func(c *stream.Config) { c.Default = objects.Name{Namespace: "ns", Name: "open"} } // no listener may use this pool
		}
		if rest, ok := strings.CutPrefix(lines[0], "for "); ok {
			words := strings.Fields(rest)
			pool, lines = objects.Name{Namespace: "ns", Name: words[0]}, lines[1:]
			if len(words) > 1 {
				rewrite = &wire.Rewrite{Prefix: words[1], With: strings.Join(words[2:], "")}
			}
		}
		if lines[0] == "vmodels" {
			f, lines = newFleetOfVModels(fleet.Config{}), lines[1:]
		}
		if lines[0] == "rpcs" {
			f, lines = newFleetOfRPCs(), lines[1:]
		}
		if lines[0] == "fallbacks" {
			f, lines = newFleetOfFallbacks(), lines[1:]
		}
		if lines[0] == "holds" {
			lines = lines[1:]
			before := change
			change = func(c *stream.Config) {
				before(c)
				c.Flow = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
			}
		}
		server, observed := newServer(t, f, change)
		x := server.Exchange(front, authority, port)
		if front == stream.Own {
			x = server.ExchangeAt(listener, pool, rewrite)
		}
		now := time.Now()
		var out strings.Builder
		for _, line := range lines {
			now = now.Add(10 * time.Millisecond)
			if line == "check" {
				fmt.Fprintf(&out, "in flight:%s\n", places(f))
				continue
			}
			if rest, ok := strings.CutPrefix(line, "control"); ok {
				f.ApplyPlacement(news(t, f, strings.Fields(rest)))
				continue
			}
			var answers []*extprocv3.ProcessingResponse
			var err error
			switch words := strings.Fields(line); words[0] {
			case "turn":
				now = now.Add(time.Second)
				answers = x.Resume(now)
			case "expire":
				answers = x.Expire()
			case "fail":
				answers = x.Refuse(flow.Failed{Reason: strings.Join(words[1:], "")})
			case "full":
				answers = x.Refuse(flow.ErrFull)
			default:
				answers, err = x.Receive(message(t, line), now)
			}
			if err != nil {
				fmt.Fprintf(&out, "the stream ends: %v\n", err)
				break
			}
			for _, m := range answers {
				out.WriteString(render(t, m))
			}
			switch waits := x.Waits(); {
			case waits != "":
				fmt.Fprintf(&out, "waits for %s\n", waits)
				if m := x.Override(); m != nil {
					fmt.Fprintf(&out, "the data plane is asked to wait %v\n", m.GetOverrideMessageTimeout().AsDuration())
				}
			case len(answers) == 0:
				out.WriteString("(nothing)\n")
			case x.Kept() > 0:
				t.Errorf("%s: %d bytes of a request that was forwarded or answered are kept", line, x.Kept())
			}
		}
		counted := inFlight(f)
		x.End(now)
		x.End(now) // the second End changes nothing
		leases := f.Leases().Current
		for _, o := range *observed {
			out.WriteString(renderOutcome(o))
		}
		fmt.Fprintf(&out, "in flight: %d, after the stream: %d (leases: %d)\n", counted, inFlight(f), leases)
		return out.String()
	}
}

// news parses a message of control.
func news(t *testing.T, f *fleet.Fleet, words []string) endpointstate.PlacementUpdate {
	t.Helper()
	n := endpointstate.PlacementUpdate{
		All: !f.Synced(), Endpoints: map[string]bool{address: true, "10.0.2.1:8000": true},
		Copies: map[endpointstate.CopyKey]endpointstate.CopyState{}, Failures: map[objects.ModelKey]string{},
		Registered: map[objects.ModelKey]bool{},
		VModels:    map[objects.ModelKey]endpointstate.Switch{},
	}
	for _, w := range words {
		verb, rest, _ := strings.Cut(w, "=")
		id, at, _ := strings.Cut(rest, "@")
		key := objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "base"}, ID: id}
		said := map[string]endpointstate.CopyState{
			"loaded": endpointstate.Loaded, "unloading": endpointstate.Unloading,
			"gone": endpointstate.Gone,
		}
		word, isCopy := said[verb]
		switch {
		case isCopy:
			n.Copies[endpointstate.CopyKey{ModelKey: key, Endpoint: at}] = word
		case verb == "failed":
			n.Failures[key] = "load_failed"
		case verb == "unknown":
			n.Failures[key] = wire.UnknownModel
		case verb == "mended":
			n.Failures[key] = ""
		case verb == "registered":
			n.Registered[objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: at}, ID: id}] = true
		case verb == "takes":
			n.Methods = map[string]engine.Methods{at: engine.Methods(strings.ReplaceAll(id, ":", " "))}
		case verb == "moved":
			n.VModels[key] = endpointstate.Switch{Active: at}
		default:
			t.Fatalf("%q is not a command", w)
		}
	}
	return n
}

// callee parses the authority or the port that another gateway calls.
func callee(t *testing.T, words []string) (authority string, port int32, change func(*stream.Config)) {
	t.Helper()
	authority = words[0]
	if n, err := strconv.ParseInt(authority, 10, 32); err == nil {
		authority, port = "", int32(n)
	}
	return authority, port, func(c *stream.Config) {
		for _, w := range words[1:] {
			switch name, ok := strings.CutPrefix(w, "default="); {
			case ok:
				c.Default = objects.Name{Namespace: "ns", Name: name}
			case w == "conformance":
				c.Conformance = true
			case w == "untold":
				c.Tokens = nil
			case w == "override":
				c.ModeOverride = true
			default:
				t.Fatalf("%q is not a command", w)
			}
		}
	}
}

func message(t testing.TB, line string) *extprocv3.ProcessingRequest {
	t.Helper()
	m := &extprocv3.ProcessingRequest{}
	verb, rest, _ := strings.Cut(line, " ")
	for strings.HasPrefix(rest, "@") {
		word, after, _ := strings.Cut(rest, " ")
		annotate(t, m, word)
		rest = after
	}
	text := rest
	if unquoted, err := strconv.Unquote(rest); err == nil {
		text = unquoted
	}
	body := &extprocv3.HttpBody{Body: []byte(text), EndOfStream: verb == "body" || verb == "answer"}
	switch verb {
	case "headers":
		h, modes := headerMap(t, rest)
		m.Request = &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: h}
		m.ProtocolConfig = modes
	case "body", "chunk":
		m.Request = &extprocv3.ProcessingRequest_RequestBody{RequestBody: body}
	case "trailers":
		m.Request = &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}
	case "response":
		h, _ := headerMap(t, rest)
		m.Request = &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: h}
	case "answer", "part":
		m.Request = &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: body}
	case "response-trailers":
		m.Request = &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}
	default:
		t.Fatalf("no message %q", verb)
	}
	return m
}

func headerMap(t testing.TB, text string) (*extprocv3.HttpHeaders, *extprocv3.ProtocolConfiguration) {
	t.Helper()
	h := &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{}}
	modes := &extprocv3.ProtocolConfiguration{RequestBodyMode: extprocfilterv3.ProcessingMode_BUFFERED}
	for word := range strings.FieldsSeq(text) {
		key, value, ok := strings.Cut(word, "=")
		switch {
		case word == "end":
			h.EndOfStream = true
		case word == "silent":
			modes = nil
		case key == "mode":
			modes.RequestBodyMode = mode(t, value)
		case key == "shown":
			modes.ResponseBodyMode = mode(t, value)
		case ok:
			h.Headers.Headers = append(h.Headers.Headers, &corev3.HeaderValue{Key: key, RawValue: []byte(value)})
		default:
			t.Fatalf("%q is not a command", word)
		}
	}
	return h, modes
}

func mode(t testing.TB, name string) extprocfilterv3.ProcessingMode_BodySendMode {
	t.Helper()
	n, ok := extprocfilterv3.ProcessingMode_BodySendMode_value[name]
	if !ok {
		t.Fatalf("no mode %q", name)
	}
	return extprocfilterv3.ProcessingMode_BodySendMode(n)
}

// annotate adds metadata to a message.
func annotate(t testing.TB, m *extprocv3.ProcessingRequest, word string) {
	t.Helper()
	if m.MetadataContext == nil {
		m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	}
	name, value, _ := strings.Cut(word[1:], "=")
	var space, key string
	v := structpb.NewStringValue(value)
	switch name {
	case "subset":
		space, key = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
	case "list":
		space, key = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
		list := &structpb.ListValue{}
		for item := range strings.SplitSeq(value, ";") {
			if item != "" {
				list.Values = append(list.Values, structpb.NewStringValue(item))
			}
		}
		v = structpb.NewListValue(list)
	case "number":
		space, key = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
		v = structpb.NewNumberValue(1)
	case "model":
		space, key = "gateway.request", "model"
	case "answered":
		space, key, v = "gateway.usage", "answered", structpb.NewBoolValue(true)
	case "served":
		space, key = "envoy.lb", "x-gateway-destination-endpoint-served"
	default:
		t.Fatalf("no metadata %q", name)
	}
	m.MetadataContext.FilterMetadata[space] = &structpb.Struct{Fields: map[string]*structpb.Value{key: v}}
}

func render(t *testing.T, m *extprocv3.ProcessingResponse) string {
	t.Helper()
	var out strings.Builder
	switch r := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		out.WriteString("headers: go on" + mutation(r.RequestHeaders.GetResponse()) + "\n")
	case *extprocv3.ProcessingResponse_RequestBody:
		out.WriteString("body: go on" + mutation(r.RequestBody.GetResponse()) + "\n")
	case *extprocv3.ProcessingResponse_RequestTrailers:
		out.WriteString("trailers: go on\n")
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		out.WriteString("response: go on" + mutation(r.ResponseHeaders.GetResponse()) + "\n")
	case *extprocv3.ProcessingResponse_ResponseBody:
		out.WriteString("answer: go on" + mutation(r.ResponseBody.GetResponse()) + "\n")
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		out.WriteString("response-trailers: go on\n")
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		i := r.ImmediateResponse
		call := ""
		if s := i.GetGrpcStatus(); s != nil {
			call = " " + codes.Code(s.GetStatus()).String()
		}
		fmt.Fprintf(&out, "reply: %d%s details=%s%s\n%s\n", i.GetStatus().GetCode(), call, i.GetDetails(), headers(i.GetHeaders()),
			i.GetBody())
	case *extprocv3.ProcessingResponse_StreamedImmediateResponse:
		switch r := r.StreamedImmediateResponse.GetResponse().(type) {
		case *extprocv3.StreamedImmediateResponse_HeadersResponse:
			out.WriteString("streamed reply:" + headerWords(r.HeadersResponse.GetHeaders()) + "\n")
		case *extprocv3.StreamedImmediateResponse_BodyResponse:
			fmt.Fprintf(&out, "its body: %q\n", r.BodyResponse.GetBody())
		case *extprocv3.StreamedImmediateResponse_TrailersResponse:
			out.WriteString("its trailers:" + headerWords(r.TrailersResponse) + "\n")
		}
	case nil:
		if m.GetModeOverride() == nil {
			t.Fatal("an empty response")
		}
	default:
		t.Fatalf("no rendering of %T", r)
	}
	if o := m.GetModeOverride(); o != nil {
		fmt.Fprintf(&out, "mode override: %s\n", o.GetRequestBodyMode())
	}
	if fields := m.GetDynamicMetadata().GetFields(); len(fields) > 0 {
		delete(fields["gateway.pick"].GetStructValue().GetFields(), "id") // the ID differs from run to run
		text, err := json.Marshal(m.GetDynamicMetadata().AsMap())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "metadata: %s\n", text)
	}
	return out.String()
}

func mutation(c *extprocv3.CommonResponse) string {
	out := headers(c.GetHeaderMutation())
	if c.GetClearRouteCache() {
		out += " (route anew)"
	}
	switch b := c.GetBodyMutation().GetMutation().(type) {
	case *extprocv3.BodyMutation_Body:
		out += " body=" + strconv.Quote(string(b.Body))
	case *extprocv3.BodyMutation_StreamedResponse:
		text := strconv.Quote(string(b.StreamedResponse.GetBody()))
		if n := len(b.StreamedResponse.GetBody()); n > 200 {
			text = fmt.Sprintf("%d bytes", n)
		}
		out += " chunk=" + text
		if b.StreamedResponse.GetEndOfStream() {
			out += " end"
		}
	}
	return out
}

func headerWords(m *corev3.HeaderMap) string {
	var out strings.Builder
	for _, h := range m.GetHeaders() {
		fmt.Fprintf(&out, " %s=%s", h.GetKey(), h.GetRawValue())
	}
	return out.String()
}

func headers(m *extprocv3.HeaderMutation) string {
	var out strings.Builder
	for _, h := range m.GetSetHeaders() {
		fmt.Fprintf(&out, " %s=%s", h.GetHeader().GetKey(), h.GetHeader().GetRawValue())
	}
	for _, name := range m.GetRemoveHeaders() {
		fmt.Fprintf(&out, " -%s", name)
	}
	return out.String()
}

func renderOutcome(o outcome.Outcome) string {
	return fmt.Sprintf("outcome: route=%s pool=%s model=%s endpoint=%s status=%d failure=%q elsewhere=%v prompt=%v completion=%v first=%v took=%v waiting=%v id=%s\n",
		o.Route, o.Pool, o.Model, o.Endpoint, o.Status, o.Failure, o.Elsewhere, o.Prompt, o.Completion, o.FirstBody, o.Duration,
		o.Load.Waiting, o.ResponseID)
}
