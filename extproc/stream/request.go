package stream

import (
	"hash/fnv"
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
)

// request is what matters of a request's headers.
type request struct {
	method, path, contentType, encoding, length string
	// written is the path as the client wrote it, where a route has it rewritten after the request is decided.
	written string
	// ids are the headers that name a model, or say how to treat such a call (ModelMesh's).
	ids []kserve.Header
	// errand is what the inner server says of the request.
	relayToken string
	// selection is what the conformance suite asks for.
	selection string
	// control are the control headers that it has.
	control []string
	all     *corev3.HeaderMap
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
			if r.encoding != "" { // one line after the other is one list
				r.encoding += ","
			}
			r.encoding += value(h)
		case "content-length":
			r.length = value(h)
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

// value is a header's value, which Envoy puts into raw_value and others into value.
func value(h *corev3.HeaderValue) string {
	if raw := h.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return h.GetValue()
}

func isControl(key string) bool {
	return key == wire.RelayTokenHeader || kserve.IsHeader(key) || strings.HasPrefix(key, wire.ControlPrefix) || slices.Contains(wire.ControlHeaders, key)
}

// header returns the first value of any header, by its name in lower case.
func (r *request) header(name string) string {
	for _, h := range r.all.GetHeaders() {
		if h.GetKey() == name {
			return value(h)
		}
	}
	return ""
}

// session is a hash of what names the request's session, 0 if nothing does.
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
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return max(1, h.Sum64())
}

// hints are what a data plane says of a request beside it, as metadata of its messages. What is said later counts.
type hints struct {
	model  string
	only   *pick.Subset // nil if it says nothing of a subset
	served string
	// answered says that the answer to a call has begun.
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

// texts are the strings of a list, or the one that v is. Whatever else it is has none: a subset that makes no sense
// allows nothing.
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

// deadline is the deadline that the client gave for its request, 0 if it gave none.
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

// maxStated bounds deadlines, in milliseconds: a day. Longer ones are none.
const maxStated = 24 * 60 * 60 * 1000

// grpcTimeout reads the header of that name: up to eight digits and a unit. What is none is 0.
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
