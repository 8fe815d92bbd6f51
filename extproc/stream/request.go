package stream

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/processing"
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
	all     []processing.Header
	// id is the request's id (x-request-id), chosen by the data plane or the client; may be empty.
	id []byte
}

func readRequest(headers []processing.Header) request {
	r := request{all: headers}
	for i := range headers {
		h := &headers[i]
		switch key := h.Name; key {
		case ":method":
			r.method = usual(h.Value)
		case ":path":
			r.path = strings.Clone(h.Value)
		case "content-type":
			r.contentType = usual(h.Value)
		case "content-encoding":
			if r.encoding != "" { // several header lines form one list
				r.encoding += ","
			}
			r.encoding += h.Value
		case "content-length":
			r.length = h.Value
		case "x-request-id":
			r.id = []byte(h.Value)
		default:
			if key == wire.RelayTokenHeader {
				r.relayToken = h.Value
			}
			if key == wire.SelectionHeader {
				r.selection = h.Value
			}
			if kserve.IsHeader(key) {
				r.ids = append(r.ids, kserve.Header{Name: key, Value: strings.Clone(h.Value)})
			}
			if isControl(key) && !slices.Contains(r.control, key) {
				r.control = append(r.control, key)
			}
		}
	}
	return r
}

// usual returns a copy of a value, which for usual values takes no memory.
func usual(value string) string {
	for _, u := range [...]string{"POST", "application/json", "application/grpc", "GET"} {
		if value == u {
			return u
		}
	}
	return strings.Clone(value)
}

// settle releases what is not needed any more after the request was decided. A response may take
// minutes, and all headers share their memory.
func (r *request) settle() {
	r.all, r.ids, r.control = nil, nil, nil
	r.encoding, r.length, r.written, r.relayToken, r.selection = "", "", "", "", ""
}

func isControl(key string) bool {
	return key == wire.RelayTokenHeader || kserve.IsHeader(key) || strings.HasPrefix(key, wire.ControlPrefix) ||
		slices.Contains(wire.ControlHeaders, key)
}

// header returns the first value of a header. Name must be in lower case.
func (r *request) header(name string) string {
	for i := range r.all {
		if h := &r.all[i]; h.Name == name {
			return h.Value
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

func (h *hints) read(m *processing.Metadata) {
	if m.Model.Known {
		h.model = m.Model.Text
	}
	if m.Subset.Known { // an invalid subset must allow no endpoint
		h.only = pick.ParseSubset(m.Subset.Texts)
	}
	if m.Served.Known {
		h.served = m.Served.Text
	}
	if m.Answered.Known {
		h.answered = m.Answered.Set
	}
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
