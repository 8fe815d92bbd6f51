package llm

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/pipenet"
)

// world is an engine that serves in memory on a clock that stands still while anything can happen,
// so that a test sees exact times and waits for nothing.
type world struct {
	*testing.T
	server *Server
	client *http.Client
	stop   context.CancelFunc
	over   chan error // the result of Run
	start  time.Time
}

// inWorld runs a test against an engine. Every goroutine of the engine must have ended when the
// test has: synctest fails the test otherwise.
func inWorld(t *testing.T, c Config, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener := pipenet.Listen()
		c.Listener = listener
		s, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		transport := &http.Transport{DialContext: listener.Dial}
		w := &world{T: t, server: s, client: &http.Client{Transport: transport}, stop: stop, over: make(chan error, 1), start: time.Now()}
		go func() { w.over <- s.Run(ctx) }()
		defer func() {
			stop()
			transport.CloseIdleConnections()
			select {
			case err := <-w.over:
				if err != nil {
					t.Errorf("Run: %v", err)
				}
			case <-time.After(time.Hour):
				t.Error("Run does not end: a request is left")
				s.driver.cutOff()
				if err := <-w.over; err != nil {
					t.Errorf("Run: %v", err)
				}
			}
		}()
		test(w)
	})
}

// elapsed is the time since the start, in seconds.
func (w *world) elapsed() float64 { return time.Since(w.start).Seconds() }

// at checks the time since the start. The driver rounds the ends of steps up to nanoseconds.
func (w *world) at(want float64, what string) {
	w.Helper()
	if got := w.elapsed(); got < want-1e-6 || got > want+1e-6 {
		w.Errorf("%s at %.6f s, want %.6f s", what, got, want)
	}
}

// answer is a whole response.
type answer struct {
	status int
	header http.Header
	body   string
	chunks []string // transfer-encoding
}

func (a answer) get(path string) gjson.Result { return gjson.Get(a.body, path) }

// send makes a request, such as "GET /health"; headers come in pairs.
func (w *world) send(ctx context.Context, request, body string, headers ...string) (*http.Response, error) {
	method, path, _ := strings.Cut(request, " ")
	r, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, strings.NewReader(body))
	if err != nil {
		w.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return w.client.Do(r)
}

// do makes a request and reads the whole answer.
func (w *world) do(request, body string, headers ...string) answer {
	w.Helper()
	resp, err := w.send(context.Background(), request, body, headers...)
	if err != nil {
		w.Fatalf("%s: %v", request, err)
	}
	return w.read(resp)
}

func (w *world) read(resp *http.Response) answer {
	w.Helper()
	var b bytes.Buffer
	if _, err := io.Copy(&b, resp.Body); err != nil {
		w.Fatal(err)
	}
	w.close(resp)
	return answer{resp.StatusCode, resp.Header, b.String(), resp.TransferEncoding}
}

func (w *world) close(resp *http.Response) {
	w.Helper()
	if err := resp.Body.Close(); err != nil {
		w.Error(err)
	}
}

func (w *world) post(path, body string, headers ...string) answer {
	w.Helper()
	return w.do("POST "+path, body, headers...)
}

// open sends a request and returns the response unread.
func (w *world) open(ctx context.Context, path, body string, headers ...string) *http.Response {
	w.Helper()
	resp, err := w.send(ctx, "POST "+path, body, headers...)
	if err != nil {
		w.Fatalf("%s: %v", path, err)
	}
	return resp
}

// metric returns the sample of /metrics whose name and labels begin with series.
func (w *world) metric(series string) string {
	w.Helper()
	for line := range strings.SplitSeq(w.do("GET /metrics", "").body, "\n") {
		if rest, ok := strings.CutPrefix(line, series); ok {
			return rest[strings.LastIndexByte(rest, ' ')+1:]
		}
	}
	return "absent"
}

// wantMetrics checks samples, given as series and value in pairs.
func (w *world) wantMetrics(pairs ...string) {
	w.Helper()
	synctest.Wait() // until handlers of requests that broke off have counted them
	for i := 0; i+1 < len(pairs); i += 2 {
		if got := w.metric(pairs[i]); got != pairs[i+1] {
			w.Errorf("%s is %s, want %s", pairs[i], got, pairs[i+1])
		}
	}
}

// slow is a profile with times that are easy to add up: 0.1 s for a prompt, and 0.001 s for each of
// its tokens; 0.05 s for a step of decoding; 2 s to load an adapter, 0.5 s to bring it into a slot.
func slow() profile.Profile {
	return profile.Profile{
		Name:              "slow",
		Prefill:           profile.Prefill{Base: 0.1, PerToken: 0.001},
		Decode:            profile.Decode{Base: 0.05},
		AdapterLoad:       profile.Spread{Mean: 2},
		AdapterActivation: profile.Spread{Mean: 0.5},
		Limits: profile.Limits{
			MaxSequences: 8, MaxBatchedTokens: 2048, KVBlocks: 16384, BlockSize: 16, GPUAdapters: 2, HostAdapters: 4,
		},
	}
}
