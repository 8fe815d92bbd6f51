package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/headgate/headgate/headgate/rig"
)

// brokenAnswers are responses that violate HTTP/1.1, keyed by the request header x-do.
var brokenAnswers = map[string]string{
	"two lengths":           "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
	"a length that is none": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: two\r\n\r\n{}",
	"a length and chunks":   "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
	"no HTTP":               "hello\r\n\r\n",
	"a header that is none": "HTTP/1.1 200 OK\r\nno header\r\n\r\n",
	"a chunk that is none":  "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
	"too few bytes":         "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{}",
}

// begun contains the keys of responses that become invalid only after their headers.
var begun = map[string]bool{"a chunk that is none": true, "too few bytes": true}

// startBroken serves an engine that lists the model "broken" and answers other requests with a
// response of brokenAnswers.
func startBroken(t *testing.T, address string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				const list = `{"object":"list","data":[{"id":"broken","object":"model"}]}`
				switch {
				case r.URL.Path == "/v1/models":
					_, _ = fmt.Fprintf(conn,
						"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
						len(list), list)
				case r.Method == http.MethodGet:
					_, _ = io.WriteString(conn, "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
				default:
					_, _ = io.WriteString(conn, brokenAnswers[r.Header.Get("X-Do")])
				}
			}()
		}
	}()
}

// If a server's response is not valid HTTP, the client gets an error in the format of its API,
// which says that the server failed, not the gateway.
func TestAnswerThatBreaksHTTPIsTheServersFault(t *testing.T) {
	runs(t)
	s := start(t, func(c *rig.Config) {
		net := strings.TrimSuffix(c.Listen, "1:8080")
		startBroken(t, net+"11:8000")
		pool, _, _ := strings.Cut(engines(net, 0), "---")
		list := fmt.Sprintf("---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: broken, labels: {app: llama}}\nspec: {addresses: ['%s11:8000'], engine: vllm}\n", net)
		for file, text := range map[string]string{
			"engines": pool + list,
			"routes":  strings.ReplaceAll(routes("broken"), "  adapter: {name: broken}\n", ""),
		} {
			if err := os.WriteFile(c.Objects+"/"+file+".yaml", []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	})
	for what := range brokenAnswers {
		for path, shape := range map[string]string{
			"/v1/completions": `"code":"bad_answer"`, "/v1/messages": `"type":"api_error"`,
			"/v2/models/broken/infer": `{"error":"`,
		} {
			a, err := s.ask(t.Context(), request{
				path:   path,
				body:   `{"model":"broken","prompt":"x","max_tokens":1,"messages":[{"role":"user","content":"x"}],"inputs":[]}`,
				header: map[string]string{"X-Do": what},
			})
			switch {
			case strings.HasPrefix(path, "/v2") && begun[what]: // Envoy does not buffer V2 responses, so the client gets the headers
				if err == nil {
					t.Errorf("%s on %s: %d %q, a whole answer", what, path, a.status, a.body)
				}
			case err != nil || a.status != http.StatusBadGateway || !strings.Contains(a.body, "The server's answer was broken.") ||
				!strings.Contains(a.body, shape):
				t.Errorf("%s on %s: %d %q, %v", what, path, a.status, a.body, err)
			}
		}
	}
}
