package sink_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/extproc/payload/sink"
)

// frame returns a message with its gRPC prefix.
func frame(message string) string {
	return "\x00" + string(binary.BigEndian.AppendUint32(nil, uint32(len(message)))) + message
}

func zipped(t *testing.T, message string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(message)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f := []byte(frame(b.String()))
	f[0] = 1
	return string(f)
}

func headers(pairs ...string) (all []sink.Header) {
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, sink.Header{Name: pairs[i], Value: pairs[i+1]})
	}
	return all
}

// said returns short texts for payloads: kind, status, and data or the reason why the data is lost.
func said(all []sink.Payload) (texts []string) {
	for _, p := range all {
		data := string(p.Data)
		if len(data) > 40 {
			data = fmt.Sprintf("%d bytes", len(data))
		}
		if p.Lost != "" {
			data = "lost: " + string(p.Lost)
			if p.Data != nil {
				data += " with data"
			}
		}
		texts = append(texts, strings.TrimSpace(fmt.Sprintf("%s %s", p.Kind, p.Status))+": "+data)
	}
	return texts
}

// run is a request and its answer, and the payloads made from them.
type run struct {
	*sink.Exchange
	all []sink.Payload
}

func begin(end bool, pairs ...string) *run {
	r := new(run)
	r.Exchange, r.all = sink.Begin(sink.About{ID: "7", Model: "one", VModel: "latest"}, headers(pairs...), end)
	return r
}

func call(more ...string) *run {
	return begin(false, append([]string{":path", "/S/M", "content-type", "application/grpc", "tenant", "blue"}, more...)...)
}

func rest() *run {
	return begin(false, ":path", "/v1/x?q", "content-type", "application/json")
}

func (r *run) asks(chunk string, end bool) *run {
	r.all = append(r.all, r.Request([]byte(chunk), end, true)...)
	return r
}

func (r *run) begins(end bool, pairs ...string) *run {
	r.all = append(r.all, r.Response(headers(pairs...), end)...)
	return r
}

func (r *run) answersCall() *run {
	return r.begins(false, ":status", "200", "content-type", "application/grpc+proto", "region", "a")
}

func (r *run) says(chunk string, end bool) *run {
	r.all = append(r.all, r.Body([]byte(chunk), end, true)...)
	return r
}

func (r *run) trails(pairs ...string) *run {
	r.all = append(r.all, r.Trailers(headers(pairs...))...)
	return r
}

func (r *run) ends() *run {
	r.all = append(r.all, r.End()...)
	return r
}

// For various orders of the parts, the payloads are as expected.
func TestPayloadsOfAnExchange(t *testing.T) {
	large := frame(strings.Repeat("x", sink.MaxBytes+1))
	for _, c := range []struct {
		what string
		run  *run
		over bool
		want []string
	}{
		{
			"a call", call().asks(frame("q"), true).answersCall().says(frame("a"), false).trails("grpc-status", "0"), true,
			[]string{"request: q", "response OK: a"},
		},
		{"two messages in a chunk", call().asks(frame("q")+frame("r"), true), false, []string{"request: q", "request: r"}},
		{
			"a message in pieces", call().asks("\x00\x00", false).asks("\x00\x00\x02q", false).asks("r", false), false,
			[]string{"request: qr"},
		},
		{"an empty message", call().asks(frame("")+frame("q"), false), false, []string{"request: ", "request: q"}},
		{
			"a stream both ways", call().asks(frame("q"), false).answersCall().says(frame("a"), false).asks(frame("r"), false).says(frame("b"),
				false).asks("", true).trails("grpc-status", "0"), true,
			[]string{"request: q", "response OK: a", "request: r", "response OK: b"},
		},
		{"a call that fails after a message", call().asks(frame("q"), true).answersCall().says(frame("a"), false).trails("grpc-status",
			"13"), true, []string{"request: q", "response OK: a", "response INTERNAL: "}},
		{"a call that fails at once", call().asks(frame("q"), true).begins(true, ":status", "200", "content-type", "application/grpc",
			"grpc-status", "5"), true, []string{"request: q", "response NOT_FOUND: "}},
		{
			"a call that succeeds without a message",
			call().asks(frame("q"), true).begins(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0"), true,
			[]string{"request: q"},
		},
		{
			"a call that ends without a status", call().begins(true, ":status", "200", "content-type", "application/grpc"), true,
			[]string{"response UNKNOWN: "},
		},
		{"a status that is not a number", call().answersCall().trails("grpc-status", "well"), true, []string{"response UNKNOWN: "}},
		{"an unknown status", call().answersCall().trails("grpc-status", "99"), true, []string{"response OTHER: "}},
		{"a call with a response of another protocol", call().asks(frame("q"), true).begins(false, ":status", "503", "content-type",
			"text/plain").says("no", true), true, []string{"request: q", "response 503: no"}},
		{"a message that is cut", call().asks(frame("qqq")[:6], true), false, []string{"request: lost: cut"}},
		{"a prefix that is cut", call().answersCall().says("\x00\x00", true), true, []string{"response OK: lost: cut"}},
		{
			"an answer that breaks off in a message", call().asks(frame("q"), true).answersCall().says(frame("aaa")[:6], false).ends(), false,
			[]string{"request: q", "response OK: lost: cut"},
		},
		{
			"an answer that breaks off between messages", call().asks(frame("q"), false).answersCall().says(frame("a"), false).ends(), false,
			[]string{"request: q", "response OK: a"},
		},
		{
			"a request that breaks off in its second message", call().asks(frame("q")+"\x00", false).ends(), false,
			[]string{"request: q", "request: lost: cut"},
		},
		{"both sides end twice", call().asks("\x00", false).ends().ends(), false, []string{"request: lost: cut"}},
		{
			"invalid messages", call().asks(frame("q")+"\x02\x00\x00\x00\x00"+frame("r"), false).asks(frame("s"), true), false,
			[]string{"request: q", "request: lost: unreadable"},
		},
		{
			"a message that is too large, and one after it", call().asks(large[:100], false).asks(large[100:]+frame("r"), true), false,
			[]string{"request: lost: too_large", "request: r"},
		},
		{
			"a message of the maximum size", call().asks(frame(strings.Repeat("x", sink.MaxBytes)), true), false,
			[]string{"request: 16777216 bytes"},
		},
		{"one that is too large and cut", call().asks(large[:100], true), false, []string{"request: lost: too_large"}},
		{"messages that come after the end", call().asks("", true).asks(frame("q"), false), false, nil},
		{
			"compressed messages", call("grpc-encoding", "gzip").asks(zipped(t, "q")+frame("r"), true).begins(false, "content-type",
				"application/grpc", "grpc-encoding", "gzip").says(zipped(t, "a"), false), false,
			[]string{"request: q", "request: r", "response OK: a"},
		},
		{
			"a message with an unknown compression", call().asks(zipped(t, "q")+frame("r"), true), false,
			[]string{"request: lost: unreadable", "request: r"},
		},
		{
			"a message that is not gzip", call("grpc-encoding", "gzip").asks("\x01"+frame("qqqqqqqq")[1:]+frame("r"), true), false,
			[]string{"request: lost: unreadable", "request: r"},
		},
		{"a message that is too large when decompressed", call("grpc-encoding", "gzip").asks(zipped(t, strings.Repeat("x", sink.MaxBytes+1))+
			frame("r"), true), false, []string{"request: lost: too_large", "request: r"}},

		{"a body", rest().asks(`{"q"`, false).asks(`:1}`, true).begins(false, ":status", "200").says("a", false).says("b", false).says("",
			true), true, []string{`request: {"q":1}`, "response 200: ab"}},
		{
			"a request without a body", begin(true, ":path", "/x", ":method", "GET").begins(false, ":status", "404").says("no", true), true,
			[]string{"request: ", "response 404: no"},
		},
		{"an answer without a body", rest().asks("q", true).begins(true, ":status", "204"), true, []string{"request: q", "response 204: "}},
		{
			"a body that trailers end", rest().asks("q", true).begins(false, ":status", "200").says("a", false).trails("checksum", "1"), true,
			[]string{"request: q", "response 200: a"},
		},
		{
			"trailers after the end of a body", rest().asks("q", true).begins(false, ":status", "200").says("a", true).trails("checksum", "1"),
			true,
			[]string{"request: q", "response 200: a"},
		},
		{"a body that is too large, and breaks off", rest().asks(large, false).ends(), false, []string{"request: lost: too_large"}},
		{"a body that is too large twice", rest().asks(large, false).asks(large, true), false, []string{"request: lost: too_large"}},
		{
			"an answer before the request's end", rest().asks("q", false).begins(false, ":status", "413").says("no", true).ends(), true,
			[]string{"response 413: no", "request: lost: cut"},
		},
		{
			"an answer that breaks off", rest().asks("q", true).begins(false, ":status", "200").says("a", false).ends(), false,
			[]string{"request: q", "response 200: lost: cut"},
		},
		{"no answer", rest().asks("q", true).ends(), false, []string{"request: q"}},
		{"a body that is too large", rest().asks(large, false).asks("more", true).ends(), false, []string{"request: lost: too_large"}},
		{
			"a body that grows too large", rest().asks(strings.Repeat("x", sink.MaxBytes), false).asks("x", true), false,
			[]string{"request: lost: too_large"},
		},
		{
			"a body of the maximum size", rest().asks(strings.Repeat("x", sink.MaxBytes-1), false).asks("x", true), false,
			[]string{"request: 16777216 bytes"},
		},
		{"gRPC frames in a body of another request", rest().asks(frame("q"), true), false, []string{"request: " + frame("q")}},
		{
			"gRPC-Web is not gRPC", begin(false, ":path", "/S/M", "content-type", "application/grpc-web").asks(frame("q"), true), false,
			[]string{"request: " + frame("q")},
		},
	} {
		if is := said(c.run.all); !slices.Equal(is, c.want) || c.run.Over() != c.over {
			t.Errorf("%s: %q, over: %t\nwant %q, over: %t", c.what, is, c.run.Over(), c.want, c.over)
		}
		if c.run.ends(); c.run.Kept() != 0 {
			t.Errorf("%s: %d bytes are kept after the end", c.what, c.run.Kept())
		}
		for _, p := range c.run.all {
			if p.ID != "7" || p.Model != "one" || p.VModel != "latest" || p.Method == "" || strings.ContainsAny(p.Method, "?") ||
				p.Metadata == nil {
				t.Errorf("%s: %+v", c.what, p)
			}
		}
	}
}

// The metadata of a request or answer contains its headers. That of a failed call contains headers
// and trailers.
func TestMetadataOfAnExchange(t *testing.T) {
	r := call().asks(frame("q"), true).answersCall().says(frame("a"), false).trails("grpc-status", "3", "region", "b", "cookie", "secret")
	for i, want := range []string{
		"map[content-type:application/grpc tenant:blue]",
		"map[content-type:application/grpc+proto region:a]",
		"map[content-type:application/grpc+proto grpc-status:3 region:b]",
	} {
		if is := fmt.Sprint(r.all[i].Metadata); is != want {
			t.Errorf("payload %d has %s, want %s", i, is, want)
		}
	}
}

// If there is no memory for a chunk, the message to which it belongs is reported as lost, once. No
// other message is lost.
func TestOutOfMemory(t *testing.T) {
	r := call().asks(frame("q")+"\x00\x00", false)
	r.all = append(r.all, r.Request([]byte("\x00\x00\x03r"), false, false)...)
	r.asks("r", false)
	r.all = append(r.all, r.Request([]byte("r"+frame("s")+frame("t")[:5]), false, false)...)
	r.asks("t"+frame("u"), true)
	if is, want := said(r.all), []string{
		"request: q", "request: lost: memory", "request: lost: memory", "request: lost: memory",
		"request: u",
	}; !slices.Equal(is, want) {
		t.Errorf("%q, want %q", is, want)
	}
	b := rest().asks("q", false)
	if b.Kept() < 1 {
		t.Error("the received part of a body is not kept")
	}
	b.all = append(b.all, b.Request([]byte("r"), false, false)...)
	if b.Kept() != 0 {
		t.Errorf("%d bytes of a lost body are kept", b.Kept())
	}
	b.asks("s", true)
	b.begins(false, ":status", "200")
	b.all = append(b.all, b.Body(nil, false, false)...)
	b.says("a", true)
	if is, want := said(b.all), []string{"request: lost: memory", "response 200: a"}; !slices.Equal(is, want) {
		t.Errorf("%q, want %q", is, want)
	}
}

// naive splits a complete body into messages, and drops an incomplete one at the end.
func naive(body []byte) (all []string) {
	for len(body) >= 5 {
		n := int(binary.BigEndian.Uint32(body[1:]))
		if len(body) < 5+n {
			break
		}
		all, body = append(all, string(body[5:5+n])), body[5+n:]
	}
	return all
}

// However a body is cut into chunks, the messages are the same as those of the whole body. No
// references to chunks are kept, and no more bytes are kept than were received.
func TestMessagesInChunksOfAnySize(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		var body []byte
		for range random.IntN(6) {
			body = append(body, frame(strings.Repeat(string(rune('a'+random.IntN(26))), random.IntN(30)))...)
		}
		if random.IntN(2) == 0 && len(body) > 0 {
			body = body[:random.IntN(len(body))]
		}
		r := call()
		for rest := body; ; {
			n := min(len(rest), random.IntN(12))
			chunk := slices.Clone(rest[:n])
			rest = rest[n:]
			r.all = append(r.all, r.Request(chunk, len(rest) == 0, true)...)
			for i := range chunk {
				chunk[i] = '#'
			}
			if r.Kept() > 4*len(body)+64 {
				t.Fatalf("%d bytes are kept of %d", r.Kept(), len(body))
			}
			if len(rest) == 0 {
				break
			}
		}
		var is []string
		for _, p := range r.all {
			if p.Lost == "" {
				is = append(is, string(p.Data))
			}
		}
		if want := naive(body); !slices.Equal(is, want) {
			t.Fatalf("%q has %q, want %q", body, is, want)
		}
		whole := 0
		for _, m := range is {
			whole += 5 + len(m)
		}
		if cut := len(r.all) > len(is); cut != (whole < len(body)) {
			t.Fatalf("%q: the cut is reported: %t", body, cut)
		}
	}
}
