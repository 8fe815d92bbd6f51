package cost

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/headgate/headgate/bench/pace"
	engineapi "github.com/headgate/headgate/internal/engine"
)

// serveHere serves engines at a free port until the test ends.
func serveHere(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../" + pageLoaded)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go newEngines(page, true, time.Microsecond).accept(l)
	return l.Addr().String()
}

// net/http reads every answer of the engines, and the client reads them too.
func TestEnginesSpeakHTTP(t *testing.T) {
	address := serveHere(t)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	get := func(path string) (int, string) {
		answer, err := client.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	for path, want := range map[string]int{readyPath: 200, scrapedPath: 200, "/v1/models": 200, "/metrics": 200, "/get_server_info": 404} {
		if status, _ := get(path); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	for _, c := range []struct {
		shape
		events    int
		has, lack string
	}{
		{shape{size: 1 << 10}, 0, `"usage"`, "data:"},
		{shape{size: 100 << 10}, 0, `"usage"`, "data:"},
		{shape{size: 1 << 10, stream: true}, events + 1, "[DONE]", `"usage"`},
		{shape{size: 1 << 10, stream: true, usage: true}, events + 2, `"usage"`, "hold"},
	} {
		sent, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(c.request())))
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(sent.Body); len(body) != c.size {
			t.Errorf("%+v: the request has %d bytes", c.shape, len(body))
		}
		sent, err = http.ReadRequest(bufio.NewReader(bytes.NewReader(c.request())))
		if err != nil {
			t.Fatal(err)
		}
		sent.URL.Scheme, sent.URL.Host, sent.RequestURI = "http", address, ""
		answer, err := client.Do(sent)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK || strings.Count(string(body), "data: ") != c.events ||
			!strings.Contains(string(body), c.has) || strings.Contains(string(body), c.lack) {
			t.Errorf("%+v: %d, %v, %d events\n%s", c.shape, answer.StatusCode, err, strings.Count(string(body), "data: "), body)
		}
		mine, err := dial(t.Context(), address, 3, c.shape)
		if err != nil {
			t.Fatal(err)
		}
		if took, err := mine.send(t.Context(), pace.Load{Requests: 7}); err != nil || len(took) != 7 || took[6] == 0 {
			t.Errorf("%+v: the client: %v, %v", c.shape, took, err)
		}
		mine.close()
	}
}

func TestClientReportsErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no model", http.StatusServiceUnavailable)
		}))
	}()
	c, err := dial(t.Context(), l.Addr().String(), 2, shape{size: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if _, err := c.send(t.Context(), pace.Load{Requests: 4}); err == nil || err.Error() != "the answer has the status 503: no model\n" {
		t.Errorf("the error is %v", err)
	}
	ended, end := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	end(cause)
	if _, err := c.send(ended, pace.Load{Requests: 4}); !errors.Is(err, cause) || err.Error() != cause.Error() {
		t.Errorf("the error of an interrupted run is %v", err)
	}
}

// An engine's page changes between two scrapes as a real one does: counters rise, and it has the
// same series. On an idle engine only the process's own counters rise. No request waits.
func TestPagesMove(t *testing.T) {
	const form = "# HELP a_total 1.0\npython_gc_total{x=\"1 2\"} %s\nvllm:a_total %s\nvllm:b_total 0.0\nvllm:c_bucket{le=\"1\"} %s\n" +
		"vllm:c_bucket{le=\"2\"} %s\nvllm:num_requests_waiting{} %s\nvllm:num_requests_running{} %s\nvllm:kv_cache_usage_perc{} %s\n" +
		"gauge 7.0\n"
	page := fmt.Appendf(nil, form, "3.0", "5", "0.0", "7", "10.0", "3.0", "0.5")
	for busy, want := range map[bool]string{
		true:  fmt.Sprintf(form, "5.0", "7.0", "2.0", "9.0", "0.0", "8.0", "0.5020"),
		false: fmt.Sprintf(form, "5.0", "5", "0.0", "7", "0.0", "0.0", "0.5"),
	} {
		if got := string(moved(page, 2, busy)); got != want {
			t.Errorf("busy %v: %s, want\n%s", busy, got, want)
		}
	}
	small := "vllm:num_requests_running{} 1.0\nvllm:lora_requests_info{} 1.0\n"
	if got := string(reduced([]byte("a_total 1.0\n" + small + "b_total 2.0\n"))); got != small {
		t.Errorf("the small page is %s", got)
	}
	for _, file := range []string{pageIdle, pageLoaded} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, busy := range []bool{false, true} {
			next := moved(text, pages, busy)
			if n := len(next) - len(text); n < -1000 || n > 1000 || bytes.Equal(next, moved(text, 1, busy)) {
				t.Errorf("%s, busy %v: the page has changed by %d bytes", file, busy, n)
			}
			parser := expfmt.NewTextParser(model.UTF8Validation)
			was, err := parser.TextToMetricFamilies(bytes.NewReader(text))
			is, err2 := parser.TextToMetricFamilies(bytes.NewReader(next))
			if err != nil || err2 != nil || len(was) != len(is) {
				t.Errorf("%s, busy %v: %v, %v, %d and %d families", file, busy, err, err2, len(was), len(is))
			}
		}
	}
}

// extproc's own reader sees on an idle engine that no request runs and that no counter of requests
// rises, and on a busy one that both change.
func TestPagesAreIdleOrBusyForExtproc(t *testing.T) {
	for _, file := range []string{pageIdle, pageLoaded} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		for busy, runs := range map[bool]float64{false: 0, true: running} {
			var loads [2]engineapi.Load
			for i := range loads {
				var reader engineapi.Reader
				if loads[i], err = reader.Load(moved(text, i+1, busy), ""); err != nil {
					t.Fatal(err)
				}
			}
			if is, ok := loads[0].Running.Get(); !ok || is != runs {
				t.Errorf("%s, busy %v: %v requests run, %v", file, busy, is, ok)
			}
			if same := loads[0].Totals == loads[1].Totals; same == busy {
				t.Errorf("%s, busy %v: the counters are the same: %v", file, busy, same)
			}
		}
	}
}

// Each engine serves its own pages in turn. The age is the longest time between two scrapes of one
// engine, or since its last one, but for the time before the age was last asked for.
func TestEnginesCountScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEngines([]byte("vllm:a_total 1.0\n"), true, time.Microsecond)
		one, other, never := &engine{engines: s}, &engine{engines: s}, &engine{engines: s}
		s.all = []*engine{one, other, never}
		check := func(want scraped) {
			t.Helper()
			if got := s.scraped(); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
		check(scraped{})
		first := one.page()
		time.Sleep(time.Second)
		if same := other.page(); !bytes.Equal(same, first) {
			t.Errorf("the first page of another engine is %s, want %s", same, first)
		}
		if next := one.page(); bytes.Equal(next, first) {
			t.Errorf("an engine's page stays %s", next)
		}
		time.Sleep(100 * time.Millisecond)
		check(scraped{3, 1})
		check(scraped{3, 0})
		time.Sleep(100 * time.Millisecond)
		one.page()
		time.Sleep(200 * time.Millisecond)
		check(scraped{4, 0.3}) // of the other one
	})
}
