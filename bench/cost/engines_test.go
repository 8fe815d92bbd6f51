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
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
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
	go newEngines(page, time.Microsecond).accept(l)
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
	for path, want := range map[string]int{readyPath: 200, scrapesPath: 200, "/v1/models": 200, "/metrics": 200, "/get_server_info": 404} {
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
		if took, err := mine.send(t.Context(), 7); err != nil || len(took) != 7 || took[6] == 0 {
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
	if _, err := c.send(t.Context(), 4); err == nil || err.Error() != "the answer has the status 503: no model\n" {
		t.Errorf("the error is %v", err)
	}
	ended, end := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	end(cause)
	if _, err := c.send(ended, 4); !errors.Is(err, cause) || err.Error() != cause.Error() {
		t.Errorf("the error of an interrupted run is %v", err)
	}
}

// An engine's page changes between two scrapes as a real one does: counters rise, and it has the
// same series. No request waits.
func TestPagesMove(t *testing.T) {
	const form = "# HELP a_total 1.0\na_total{x=\"1 2\"} %s\nb_total 0.0\nc_bucket{le=\"1\"} %s\nvllm:num_requests_waiting{} %s\ngauge 7.0\n"
	page, want := fmt.Appendf(nil, form, "3.0", "5", "10.0"), fmt.Sprintf(form, "5.0", "7.0", "0.0")
	if got := string(moved(page, 2)); got != want {
		t.Errorf("%s, want\n%s", got, want)
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
		next := moved(text, pages)
		if n := len(next) - len(text); n < -1000 || n > 1000 || bytes.Equal(next, moved(text, 1)) {
			t.Errorf("%s: the page has changed by %d bytes", file, n)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		was, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		is, err2 := parser.TextToMetricFamilies(bytes.NewReader(next))
		if err != nil || err2 != nil || len(was) != len(is) {
			t.Errorf("%s: %v, %v, %d and %d families", file, err, err2, len(was), len(is))
		}
	}
}
