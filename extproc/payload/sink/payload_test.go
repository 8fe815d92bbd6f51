package sink_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/extproc/payload/sink"
)

// A posted payload has exactly ModelMesh's fields.
func TestPayloadAsItIsPosted(t *testing.T) {
	for _, c := range []struct {
		p    sink.Payload
		want string
	}{
		{
			sink.Payload{
				ID: "7", Model: "模型", VModel: `a"b`, Method: "S/M", Kind: sink.Response, Status: "OK",
				Metadata: map[string]string{"tenant": "blue", "trace-bin": "AP8="}, Data: []byte("\x00\xffhello"),
			},
			`{"id":"7","modelid":"模型","vModelId":"a\"b","kind":"response","status":"OK","metadata":{"tenant":"blue","trace-bin":"AP8="},"data":"AP9oZWxsbw=="}`,
		},
		{
			sink.Payload{ID: "1", Kind: sink.Request, Metadata: map[string]string{}},
			`{"id":"1","modelid":"","vModelId":"","kind":"request","status":"","metadata":{},"data":""}`,
		},
	} {
		body, size := c.p.Body()
		is, err := io.ReadAll(body)
		if string(is) != c.want || err != nil || size != int64(len(is)) {
			t.Errorf("%s, %v, with a stated size of %d bytes\nwant %s", is, err, size, c.want)
		}
	}
}

// Data of any length, read in pieces of any size, is the same base64 that encoding/json writes.
func TestDataIsBase64(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	lengths := []int{0, 1, 2, 3, 4, 3071, 3072, 3073, 6143, 6144, 6145, 100_000}
	for range 50 {
		lengths = append(lengths, random.IntN(10_000))
	}
	for _, n := range lengths {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		p := sink.Payload{Data: data}
		for name, slow := range map[string]func(io.Reader) io.Reader{
			"at once":  func(r io.Reader) io.Reader { return r },
			"by bytes": iotest.OneByteReader, "by halves": iotest.HalfReader,
		} {
			body, size := p.Body()
			text, err := io.ReadAll(slow(body))
			if err != nil || int64(len(text)) != size {
				t.Fatalf("%d bytes %s: %d, stated as %d, %v", n, name, len(text), size, err)
			}
			var is struct{ Data []byte }
			if err := json.Unmarshal(text, &is); err != nil || !bytes.Equal(is.Data, data) {
				t.Fatalf("%d bytes %s come back changed: %v", n, name, err)
			}
			if !bytes.Contains(text, []byte(`"`+base64.StdEncoding.EncodeToString(data)+`"}`)) {
				t.Fatalf("%d bytes %s: %s", n, name, text)
			}
		}
	}
}

// Metadata contains neither credentials nor internal headers.
func TestMetadata(t *testing.T) {
	headers := []sink.Header{
		{":path", "/a"},
		{":status", "200"},
		{"content-type", "application/grpc"},
		{"tenant", "blue"},
		{"tenant", "green"},
		{"user-agent", ""},
		{"authorization", "Bearer secret"},
		{"proxy-authorization", "secret"},
		{"cookie", "secret"},
		{"set-cookie", "secret"},
		{"x-api-key", "secret"},
		{"api-key", "secret"},
		{"x-gateway-destination-endpoint", "secret"},
		{"x-headgate-relay-token", "secret"},
		{"x-gatewa", "kept"},
		{"mm-model-id", "one"},
		{"a-bin", "AP8"},
		{"b-bin", "AP8=, AA"},
		{"c-bin", "no base64!"},
		{"d-bin", "AP8"},
		{"d-bin", "AA=="},
		{"bin", "plain"},
		{"e-bin", ""},
	}
	want := map[string]string{
		"content-type": "application/grpc", "tenant": "blue,green", "user-agent": "", "x-gatewa": "kept", "mm-model-id": "one",
		"a-bin": "AP8=", "b-bin": "AP8=,AA==", "d-bin": "AP8=,AA==", "bin": "plain", "e-bin": "",
	}
	if diff := cmp.Diff(want, sink.Metadata(headers)); diff != "" {
		t.Error(diff)
	}
}
