package sink

import (
	"strconv"

	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/outcome"
)

// About is what is known of a request before its body comes.
type About struct{ ID, Model, VModel string }

// Exchange makes payloads of one request and its answer, as they come. Its methods are called in
// the order in which things came, from one goroutine, and return the payloads that are whole by
// then, in order. Chunks are the caller's again when a method returns.
type Exchange struct {
	about    About
	method   string
	request  side
	response side
	over     bool
}

// side is the request or the answer.
type side struct {
	kind     Kind
	status   string
	metadata map[string]string
	encoding string // of messages
	call     bool   // messages come, else one body
	ended    bool
	messages frames
	body     body
}

// Begin begins with the headers of a request. End says that no body comes.
func Begin(about About, headers []Header, end bool) (*Exchange, []Payload) {
	x := &Exchange{about: about, method: MethodOf(value(headers, ":path"))}
	x.request = sideOf(Request, headers)
	if end {
		return x, x.end(&x.request)
	}
	return x, nil
}

func sideOf(kind Kind, headers []Header) side {
	return side{kind: kind, metadata: Metadata(headers), encoding: value(headers, "grpc-encoding"),
		call: kserve.IsCall(value(headers, "content-type"))}
}

// Request adds a chunk of the request's body, the last one if it is the end. Where keep is false
// there is no room for it: what it is a part of is lost.
func (x *Exchange) Request(chunk []byte, end, keep bool) []Payload {
	return x.add(&x.request, chunk, end, keep)
}

// Response begins the answer with its headers. End says that nothing follows.
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

// Body adds a chunk of the answer's body, as Request does of the request's.
func (x *Exchange) Body(chunk []byte, end, keep bool) []Payload {
	all := x.add(&x.response, chunk, end, keep)
	x.over = x.over || end
	return all
}

// Trailers end the answer. A call that ends with another status than OK has one more payload,
// without data, that says so.
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

// Over says that the answer has ended: nothing more is of use.
func (x *Exchange) Over() bool { return x.over }

// Kept is how many bytes are kept of what is not whole.
func (x *Exchange) Kept() int {
	kept := 0
	for _, s := range []*side{&x.request, &x.response} {
		kept += cap(s.messages.begun) + cap(s.body.bytes)
	}
	return kept
}

// End ends both sides where they are. What is not whole is lost.
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

// end ends a side: a body is whole then.
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

// partial says whether something has begun and not ended.
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

// statusOf is the name of a code of gRPC; UNKNOWN for what is none.
func statusOf(code string) string {
	n, err := strconv.ParseUint(code, 10, 7)
	if err != nil {
		n = 2
	}
	return outcome.CallOf(uint8(n)).String()
}

// value is that of a header, empty if there is none.
func value(headers []Header, name string) string {
	for _, h := range headers {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}
