package stream

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/hash"
)

// request contains those headers of a request that extproc uses.
type request struct {
	method, path, contentType, encoding, length string
	// written is the path that the client sent; path is the path after the route's rewrite.
	written string
	// ids are ModelMesh's headers. They name the model or affect how the call is treated.
	ids []kserve.Header
	// relayToken is the encrypted token of a request from the relay.
	relayToken string
	// selection is the endpoint that the conformance suite requests.
	selection string
	// control are the names of Headgate's own headers in the request. Engines must not get them.
	control []string
	all     *corev3.HeaderMap
	// id is the request's id (x-request-id), chosen by the data plane or the client; may be empty.
	id []byte
}

func readRequest(m *corev3.HeaderMap) request {
	r := request{all: m}
	for _, h := range m.GetHeaders() {
		switch key := h.GetKey(); key {
		case ":method":
			r.method = value(h)
		case ":path":
			r.path = value(h)
		case "content-type":
			r.contentType = value(h)
		case "content-encoding":
			if r.encoding != "" { // several header lines form one list
				r.encoding += ","
			}
			r.encoding += value(h)
		case "content-length":
			r.length = value(h)
		case "x-request-id":
			if r.id = h.GetRawValue(); len(r.id) == 0 {
				r.id = []byte(h.GetValue())
			}
		default:
			if key == wire.RelayTokenHeader {
				r.relayToken = value(h)
			}
			if key == wire.SelectionHeader {
				r.selection = value(h)
			}
			if kserve.IsHeader(key) {
				r.ids = append(r.ids, kserve.Header{Name: key, Value: value(h)})
			}
			if isControl(key) && !slices.Contains(r.control, key) {
				r.control = append(r.control, key)
			}
		}
	}
	return r
}

// value returns a header's value. Envoy sets the field raw_value, other data planes the field
// value.
func value(h *corev3.HeaderValue) string {
	if raw := h.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return h.GetValue()
}

func isControl(key string) bool {
	return key == wire.RelayTokenHeader || kserve.IsHeader(key) || strings.HasPrefix(key, wire.ControlPrefix) ||
		slices.Contains(wire.ControlHeaders, key)
}

// header returns the first value of a header. Name must be in lower case.
func (r *request) header(name string) string {
	for _, h := range r.all.GetHeaders() {
		if h.GetKey() == name {
			return value(h)
		}
	}
	return ""
}

// hashOf returns a hash of a header's value; 0 if the name is empty or the request has no such
// header. The value is kept nowhere.
func (r *request) hashOf(name string) uint64 {
	if name == "" {
		return 0
	}
	value := r.header(name)
	if value == "" {
		return 0
	}
	return max(1, hash.Of(value))
}

// session returns a hash of the request's session key; 0 if the request has no session key.
func (r *request) session(s settings.Settings) uint64 {
	var name string
	switch {
	case s.AffinityHeader != "":
		name = r.header(s.AffinityHeader)
	case s.AffinityCookie != "":
		cookies := (&http.Request{Header: http.Header{"Cookie": []string{r.header("cookie")}}}).CookiesNamed(s.AffinityCookie)
		if len(cookies) > 0 {
			name = cookies[0].Value
		}
	}
	if name == "" {
		return 0
	}
	return max(1, hash.Of(name))
}

// hints are metadata that a data plane adds to its messages. A later value replaces an earlier one.
type hints struct {
	model  string
	only   *pick.Subset // nil if the data plane names no subset
	served string
	// answered means that the response to a call has begun.
	answered bool
}

func (h *hints) read(m *corev3.Metadata) {
	spaces := m.GetFilterMetadata()
	if spaces == nil {
		return
	}
	if v := spaces[wire.RequestNamespace].GetFields()[wire.RequestModel]; v != nil {
		h.model = v.GetStringValue()
	}
	if v := spaces[wire.SubsetNamespace].GetFields()[wire.SubsetKey]; v != nil {
		h.only = pick.ParseSubset(texts(v))
	}
	if v := spaces[wire.DestinationNamespace].GetFields()[wire.ServedKey]; v != nil {
		h.served = v.GetStringValue()
	}
	if v := spaces[wire.UsageNamespace].GetFields()[wire.UsageAnswered]; v != nil {
		h.answered = v.GetBoolValue()
	}
}

// texts returns v as a list of strings. It returns an empty list if v has another type, because an
// invalid subset must allow no endpoint.
func texts(v *structpb.Value) []string {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return []string{kind.StringValue}
	case *structpb.Value_ListValue:
		var all []string
		for _, item := range kind.ListValue.GetValues() {
			all = append(all, item.GetStringValue())
		}
		return all
	}
	return nil
}

// deadline returns the client's deadline for the request; 0 means none.
func (r *request) deadline() time.Duration {
	var d time.Duration
	if ms, err := strconv.ParseInt(r.header(wire.TimeoutHeader), 10, 64); err == nil && ms > 0 && ms < maxStated {
		d = time.Duration(ms) * time.Millisecond
	}
	if own := grpcTimeout(r.header("grpc-timeout")); own > 0 && (d == 0 || own < d) {
		d = own
	}
	return d
}

// maxStated is the longest deadline that is obeyed: one day, in milliseconds. Longer deadlines are
// ignored.
const maxStated = 24 * 60 * 60 * 1000

// grpcTimeout parses a grpc-timeout header, which has up to eight digits and a unit. It returns 0
// if the text is invalid.
func grpcTimeout(text string) time.Duration {
	if len(text) < 2 || len(text) > 9 {
		return 0
	}
	unit, ok := map[byte]time.Duration{
		'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
	}[text[len(text)-1]]
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	if !ok || err != nil || n > uint64(maxStated*time.Millisecond/unit) {
		return 0
	}
	return time.Duration(n) * unit
}
