package sink

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"strings"
)

// MaxBytes is how many bytes a payload may have: 16 MiB, as many as ModelMesh takes in a message by
// default.
const MaxBytes = 16 << 20

// Kind is what a payload is a copy of.
type Kind string

// The kinds, as they are written.
const (
	Request  Kind = "request"
	Response Kind = "response"
)

// Lost is why there is no copy of what was to be one.
type Lost string

// Reasons.
const (
	TooLarge   Lost = "too_large"  // it has more than [MaxBytes]
	Unreadable Lost = "unreadable" // what a call sent is no message
	Cut        Lost = "cut"        // it ended before its end
	NoMemory   Lost = "memory"     // too many bytes are kept
)

// Payload is the copy of a message or a body.
type Payload struct {
	// ID is the same for all payloads of one request and its answer.
	ID string
	// Model is the model that was decided on, by its engine's name, and VModel the VModel that the
	// request named; empty for none.
	Model, VModel string
	// Method is the request's, as of [MethodOf].
	Method string
	Kind   Kind
	// Status is that of an answer, empty of a request: the name of a status of gRPC, as OK, or the
	// number of an HTTP status.
	Status string
	// Metadata are headers, as of [Metadata], shared by payloads.
	Metadata map[string]string
	// Data is the message, inflated, or the body as it came.
	Data []byte
	// Lost says that Data is not there, and why; empty where it is.
	Lost Lost
}

// Body is the payload as it is posted, in JSON with ModelMesh's fields, and how many bytes that is.
// It makes no copy of Data.
func (p *Payload) Body() (io.Reader, int64) {
	text, err := json.Marshal(struct {
		ID       string            `json:"id"`
		Model    string            `json:"modelid"`
		VModel   string            `json:"vModelId"`
		Kind     Kind              `json:"kind"`
		Status   string            `json:"status"`
		Metadata map[string]string `json:"metadata"`
		Data     string            `json:"data"` // the last: it goes between its quotes
	}{p.ID, p.Model, p.VModel, p.Kind, p.Status, p.Metadata, ""})
	if err != nil {
		panic(err) // texts always marshal
	}
	before, after := text[:len(text)-2], text[len(text)-2:]
	size := int64(len(text)) + int64(base64.StdEncoding.EncodedLen(len(p.Data)))
	return io.MultiReader(bytes.NewReader(before), &encoder{rest: p.Data}, bytes.NewReader(after)), size
}

// encoder reads bytes as base64, a block at a time.
type encoder struct {
	rest  []byte
	block [4096]byte
	ready []byte // of block
}

func (e *encoder) Read(p []byte) (int, error) {
	if len(e.ready) == 0 {
		if len(e.rest) == 0 {
			return 0, io.EOF
		}
		n := min(len(e.rest), len(e.block)/4*3)
		base64.StdEncoding.Encode(e.block[:], e.rest[:n])
		e.ready, e.rest = e.block[:base64.StdEncoding.EncodedLen(n)], e.rest[n:]
	}
	n := copy(p, e.ready)
	e.ready = e.ready[n:]
	return n, nil
}

// Header is one header, its name in lower case.
type Header struct{ Name, Value string }

// secret are the headers by which a client, or the gateway, is let in somewhere.
var secret = map[string]bool{
	"authorization": true, "proxy-authorization": true, "cookie": true, "set-cookie": true, "x-api-key": true, "api-key": true,
}

// Metadata returns headers by their names: those that come twice with a comma between. Names with
// -bin have base64 with its padding; one that is none is left out. Left out are HTTP/2's own,
// secrets, and what the gateway's parts tell each other.
func Metadata(headers []Header) map[string]string {
	all := make(map[string]string, len(headers))
	for _, h := range headers {
		if secret[h.Name] || strings.HasPrefix(h.Name, ":") || strings.HasPrefix(h.Name, "x-gateway-") ||
			strings.HasPrefix(h.Name, "x-headgate-") {
			continue
		}
		value := h.Value
		if strings.HasSuffix(h.Name, "-bin") {
			var ok bool
			if value, ok = padded(value); !ok {
				continue
			}
		}
		if before, ok := all[h.Name]; ok {
			value = before + "," + value
		}
		all[h.Name] = value
	}
	return all
}

// padded returns values of bytes, with commas between, with the padding that gRPC lets senders
// leave out.
func padded(list string) (string, bool) {
	parts := strings.Split(list, ",")
	for i, part := range parts {
		value, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(part), "="))
		if err != nil {
			return "", false
		}
		parts[i] = base64.StdEncoding.EncodeToString(value)
	}
	return strings.Join(parts, ","), true
}
