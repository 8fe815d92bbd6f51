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

// world is an engine that serves in memory, on a clock that advances only when all goroutines wait.
// So a test sees exact times and does not really wait.
type world struct {
	*testing.T
	server *Server
	client *http.Client
	stop   context.CancelFunc
	over   chan error // receives the result of Run
	start  time.Time
}

// inWorld runs a test against an engine. All goroutines of the engine must end with the test;
// otherwise synctest fails it.
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

// elapsed returns the seconds since the start of the world.
func (w *world) elapsed() float64 { return time.Since(w.start).Seconds() }

// at checks the seconds since the start. It tolerates that the driver rounds the ends of steps up
// to nanoseconds.
func (w *world) at(want float64, what string) {
	w.Helper()
	if got := w.elapsed(); got < want-1e-6 || got > want+1e-6 {
		w.Errorf("%s at %.6f s, want %.6f s", what, got, want)
	}
}

// answer is a complete response.
type answer struct {
	status int
	header http.Header
	body   string
	chunks []string // the transfer-encoding header
}

func (a answer) get(path string) gjson.Result { return gjson.Get(a.body, path) }

// send sends a request such as "GET /health". headers are pairs of name and value.
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

// do sends a request and reads the complete answer.
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

// open sends a request and returns the response. The caller reads its body.
func (w *world) open(ctx context.Context, path, body string, headers ...string) *http.Response {
	w.Helper()
	resp, err := w.send(ctx, "POST "+path, body, headers...)
	if err != nil {
		w.Fatalf("%s: %v", path, err)
	}
	return resp
}

// metric returns the value of the series in /metrics whose name and labels begin with series.
func (w *world) metric(series string) string {
	w.Helper()
	for line := range strings.SplitSeq(w.do("GET /metrics", "").body, "\n") {
		if rest, ok := strings.CutPrefix(line, series); ok {
			return rest[strings.LastIndexByte(rest, ' ')+1:]
		}
	}
	return "absent"
}

// wantMetrics checks the values of series in /metrics. pairs are pairs of series and value.
func (w *world) wantMetrics(pairs ...string) {
	w.Helper()
	synctest.Wait() // until handlers have counted their disconnected requests
	for i := 0; i+1 < len(pairs); i += 2 {
		if got := w.metric(pairs[i]); got != pairs[i+1] {
			w.Errorf("%s is %s, want %s", pairs[i], got, pairs[i+1])
		}
	}
}

// slow is a profile with times that are easy to add up. A prompt takes 0.1 s plus 0.001 s for each
// token, and a decode step 0.05 s. Loading an adapter into host memory takes 2 s, and into a slot
// 0.5 s.
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
