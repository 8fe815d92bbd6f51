package e2e

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// encoded returns body encoded with a content coding, such as gzip.
func encoded(t *testing.T, coding, body string) string {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "zstd":
		z, err := zstd.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	case "gzip":
		w = gzip.NewWriter(&out)
	case "deflate":
		w = zlib.NewWriter(&out)
	case "br":
		w = brotli.NewWriter(&out)
	}
	if _, err := io.WriteString(w, body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// promptTokens returns the number of prompt tokens that an engine reported, as text. If the
// response is an error, it returns the error.
func promptTokens(a answer) string {
	var is struct {
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		}
		Error struct{ Message string }
	}
	if err := json.Unmarshal([]byte(a.body), &is); err != nil {
		return err.Error()
	}
	return fmt.Sprint(a.status, is.Usage.Prompt, is.Error.Message)
}

// An engine gets the decompressed body of a compressed request. If the body cannot be decompressed,
// the client gets an error with the reason. Both are true with envoy.yaml and at a Gateway.
func TestCompressedRequestsAreDecoded(t *testing.T) {
	runs(t)
	for name, front := range map[string]setting{"standalone": standalone, "gateway": throughGateway} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, front)
			chat := func(prompt string) string {
				return fmt.Sprintf(`{"model":"a01","max_tokens":1,"messages":[{"role":"user","content":%q}]}`, prompt)
			}
			const path = "/v1/chat/completions"
			for what, body := range map[string]string{
				"some words":               chat("hello"),
				"many words":               chat(strings.Repeat("word after word ", 2500)),
				"a megabyte of one":        chat(strings.Repeat("a", 1<<20)),
				"almost as many as it may": chat(strings.Repeat("a", 32<<20-1<<10)),
			} {
				want := promptTokens(s.must(request{path: path, body: body}))
				for _, coding := range []string{"zstd", "gzip", "br", "deflate"} {
					for _, framing := range []string{"", "chunked"} {
						if len(body) > 2<<20 && (framing != "" || coding == "deflate" || coding == "br") {
							continue // for large bodies a few combinations suffice
						}
						a := s.must(request{
							path: path, body: encoded(t, coding, body),
							header: map[string]string{"Content-Encoding": coding, "Transfer-Encoding": framing},
						})
						if got := promptTokens(a); got != want {
							t.Errorf("%s in %s %s: %s, and %s without", what, coding, framing, got, want)
						}
					}
				}
			}
			twice := encoded(t, "zstd", encoded(t, "gzip", chat("hello")))
			if a := s.must(request{path: path, body: twice, header: map[string]string{"Content-Encoding": "gzip, zstd"}}); a.status != 200 {
				t.Errorf("in gzip and zstd: %d %s", a.status, a.body)
			}
			var form bytes.Buffer
			m := multipart.NewWriter(&form)
			_ = m.WriteField("model", "a01")
			file, _ := m.CreateFormFile("file", "a.wav")
			_, _ = file.Write(bytes.Repeat([]byte("RIFF"), 1<<16))
			_ = m.Close()
			audio := map[string]string{"Content-Encoding": "gzip", "Content-Type": m.FormDataContentType()}
			if a := s.must(request{
				path: "/v1/audio/transcriptions", body: encoded(t, "gzip", form.String()),
				header: audio,
			}); a.status != 200 {
				t.Errorf("an upload in gzip: %d %s", a.status, a.body)
			}

			served := s.engineSum("vllm:request_success_total")
			big := strings.Repeat("a", 33<<20)
			for _, coding := range []string{"zstd", "gzip", "br", "deflate"} {
				header := map[string]string{"Content-Encoding": coding}
				whole := encoded(t, coding, chat(strings.Repeat("word ", 2000)))
				refused(t, "half of "+coding, s.must(request{path: path, body: whole[:len(whole)/2], header: header}), 400,
					"invalid_content_encoding")
				refused(t, "more than "+coding, s.must(request{path: path, body: whole + "more", header: header}), 400,
					"invalid_content_encoding")
				refused(t, "no "+coding, s.must(request{path: path, body: chat("hello"), header: header}), 400, "invalid_content_encoding")
				refused(t, "too large in "+coding, s.must(request{path: path, body: encoded(t, coding, big), header: header}), 413,
					"request_too_large")
			}
			other := s.must(request{path: path, body: "x", header: map[string]string{"Content-Encoding": "compress"}})
			refused(t, "a coding that is not supported", other, 415, "unsupported_content_encoding")
			if got := other.header.Get("Accept-Encoding"); got != "zstd, gzip, br, deflate" {
				t.Errorf("415 says that it accepts %q", got)
			}
			if n := s.engineSum("vllm:request_success_total"); n != served {
				t.Errorf("engines served %v of the requests that were refused", n-served)
			}
		})
	}
}
