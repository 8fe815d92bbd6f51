package sink

import (
	"strconv"

	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/outcome"
)

// About identifies a request and its model: what the decision states before the body arrives.
type About struct{ ID, Model, VModel string }

// Exchange builds the payloads of one request and its answer. One goroutine calls its methods, in
// the order in which the parts arrive. Each method returns the newly completed payloads, in order.
// The methods do not keep references to chunks.
type Exchange struct {
	about    About
	method   string
	request  side
	response side
	over     bool
}

// side is the state of the request or of the answer.
type side struct {
	kind     Kind
	status   string
	metadata map[string]string
	encoding string // encoding of the gRPC messages
	call     bool   // whether the side consists of gRPC messages instead of one body
	ended    bool
	messages frames
	body     body
}

// Begin starts an Exchange with the headers of a request. end means that no body follows.
func Begin(about About, headers []Header, end bool) (*Exchange, []Payload) {
	x := &Exchange{about: about, method: MethodOf(value(headers, ":path"))}
	x.request = sideOf(Request, headers)
	if end {
		return x, x.end(&x.request)
	}
	return x, nil
}

func sideOf(kind Kind, headers []Header) side {
	return side{
		kind: kind, metadata: Metadata(headers), encoding: value(headers, "grpc-encoding"),
		call: kserve.IsCall(value(headers, "content-type")),
	}
}

// Request adds a chunk of the request's body; end marks the last chunk. If keep is false there is
// no memory for the chunk, and the message or body to which it belongs is lost.
func (x *Exchange) Request(chunk []byte, end, keep bool) []Payload {
	return x.add(&x.request, chunk, end, keep)
}

// Response starts the answer with its headers. end means that neither a body nor trailers follow.
func (x *Exchange) Response(headers []Header, end bool) []Payload {
	x.response = sideOf(Response, headers)
	x.response.status = value(headers, ":status")
	if x.response.call {
		x.response.status = statusOf("0")
	}
	if end {
		return x.Trailers(headers)
	}
	return nil
}

// Body adds a chunk of the answer's body. Its parameters are those of Request.
func (x *Exchange) Body(chunk []byte, end, keep bool) []Payload {
	all := x.add(&x.response, chunk, end, keep)
	x.over = x.over || end
	return all
}

// Trailers ends the answer. If a gRPC call fails, there is one more payload, with the status and
// without data.
func (x *Exchange) Trailers(headers []Header) []Payload {
	s := &x.response
	all := x.end(s)
	x.over = true
	if code := value(headers, "grpc-status"); s.call && code != "0" {
		metadata := Metadata(headers)
		for name, value := range s.metadata {
			if _, ok := metadata[name]; !ok {
				metadata[name] = value
			}
		}
		p := x.payload(s, nil)
		p.Status, p.Metadata = statusOf(code), metadata
		all = append(all, p)
	}
	return all
}

// Over reports whether the answer has ended.
func (x *Exchange) Over() bool { return x.over }

// Kept returns the number of bytes of incomplete payloads.
func (x *Exchange) Kept() int {
	kept := 0
	for _, s := range []*side{&x.request, &x.response} {
		kept += cap(s.messages.begun) + cap(s.body.bytes)
	}
	return kept
}

// End ends the request and the answer, even if parts are missing. Incomplete payloads are lost.
func (x *Exchange) End() []Payload {
	var all []Payload
	for _, s := range []*side{&x.request, &x.response} {
		if !s.ended && s.partial() {
			all = append(all, x.lost(s, Cut))
		}
		*s = side{ended: true}
	}
	return all
}

func (x *Exchange) add(s *side, chunk []byte, end, keep bool) (all []Payload) {
	switch {
	case s.ended:
		return nil
	case !s.call:
		if lost := s.body.add(chunk, keep); lost != "" {
			all = append(all, x.lost(s, lost))
		}
	default:
		s.messages.add(chunk, keep, func(frame []byte, lost Lost) {
			var data []byte
			if lost == "" {
				data, lost = inflate(frame, s.encoding)
			}
			if lost != "" {
				all = append(all, x.lost(s, lost))
				return
			}
			all = append(all, x.payload(s, data))
		})
	}
	if end {
		all = append(all, x.end(s)...)
	}
	return all
}

// end ends the request or the answer, which completes its body.
func (x *Exchange) end(s *side) (all []Payload) {
	switch {
	case s.ended:
		return nil
	case s.call && s.partial():
		all = append(all, x.lost(s, Cut))
	case !s.call && !s.body.lost:
		all = append(all, x.payload(s, s.body.bytes))
	}
	s.ended, s.messages, s.body = true, frames{}, body{}
	return all
}

// partial reports whether a message or body is incomplete.
func (s *side) partial() bool {
	if s.call {
		return s.messages.partial()
	}
	return s.kind != "" && !s.body.lost
}

func (x *Exchange) payload(s *side, data []byte) Payload {
	return Payload{
		ID: x.about.ID, Model: x.about.Model, VModel: x.about.VModel, Method: x.method,
		Kind: s.kind, Status: s.status, Metadata: s.metadata, Data: data,
	}
}

func (x *Exchange) lost(s *side, why Lost) Payload {
	p := x.payload(s, nil)
	p.Lost = why
	return p
}

// statusOf returns the name of a gRPC status code; UNKNOWN for an invalid one.
func statusOf(code string) string {
	n, err := strconv.ParseUint(code, 10, 7)
	if err != nil {
		n = 2
	}
	return outcome.CallOf(uint8(n)).String()
}

// value returns the value of a header, or an empty string.
func value(headers []Header, name string) string {
	for _, h := range headers {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}
