package sink

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"strings"
)

// MaxBytes is the maximum size of a payload: 16 MiB, like ModelMesh's default limit of a message.
const MaxBytes = 16 << 20

// Kind is the kind of message or body that a payload is a copy of.
type Kind string

// The kinds, with the values that payloads contain.
const (
	Request  Kind = "request"
	Response Kind = "response"
)

// Lost is the reason why a payload has no data.
type Lost string

// Reasons why a payload has no data.
const (
	TooLarge   Lost = "too_large"  // the data exceeds [MaxBytes]
	Unreadable Lost = "unreadable" // the body does not consist of gRPC messages
	Cut        Lost = "cut"        // the data is incomplete
	NoMemory   Lost = "memory"     // the payloads in memory have reached their limit
)

// Payload is the copy of one message or of one body.
type Payload struct {
	// ID is the same for all payloads of one request and its answer.
	ID string
	// Model is the engine's name of the chosen model, and VModel is the VModel that the request
	// named. Each may be empty.
	Model, VModel string
	// Method is the method of the request, as [MethodOf] returns it.
	Method string
	Kind   Kind
	// Status is the status of an answer: a gRPC status name such as OK, or an HTTP status code. It
	// is empty for a request.
	Status string
	// Metadata are headers, as [Metadata] returns them. Several payloads share the map.
	Metadata map[string]string
	// Data is the decompressed message, or the body as it arrived.
	Data []byte
	// Lost is the reason why Data is missing; empty if it is present.
	Lost Lost
}

// Body returns the JSON of the payload, with ModelMesh's fields, as it is posted, and the size of
// the JSON. It does not copy Data.
func (p *Payload) Body() (io.Reader, int64) {
	text, err := json.Marshal(struct {
		ID       string            `json:"id"`
		Model    string            `json:"modelid"`
		VModel   string            `json:"vModelId"`
		Kind     Kind              `json:"kind"`
		Status   string            `json:"status"`
		Metadata map[string]string `json:"metadata"`
		Data     string            `json:"data"` // the last field of the JSON, so that the data can be inserted between its quotes
	}{p.ID, p.Model, p.VModel, p.Kind, p.Status, p.Metadata, ""})
	if err != nil {
		panic(err) // cannot happen: strings can always be marshalled
	}
	before, after := text[:len(text)-2], text[len(text)-2:]
	size := int64(len(text)) + int64(base64.StdEncoding.EncodedLen(len(p.Data)))
	return io.MultiReader(bytes.NewReader(before), &encoder{rest: p.Data}, bytes.NewReader(after)), size
}

// encoder reads bytes as base64, one block at a time.
type encoder struct {
	rest  []byte
	block [4096]byte
	ready []byte // unread part of block
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

// Header is one header with a lower-case name.
type Header struct{ Name, Value string }

// secret contains the headers with credentials of the client or the gateway.
var secret = map[string]bool{
	"authorization": true, "proxy-authorization": true, "cookie": true, "set-cookie": true, "x-api-key": true, "api-key": true,
}

// Metadata returns headers by name; the values of repeated headers are joined with a comma. Values
// of -bin headers are padded base64. Metadata omits invalid values of these, HTTP/2 pseudo-headers,
// credentials, and the gateway's internal headers.
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

// padded adds base64 padding, which gRPC senders may omit, to each of the comma-separated values.
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
