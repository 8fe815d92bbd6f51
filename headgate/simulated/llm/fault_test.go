package llm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestFaultsAreParsedOrRefusedWithAReason(t *testing.T) {
	for text, want := range map[string]Fault{
		"latency=1.5s":    {kind: faultLatency, latency: 1500 * time.Millisecond, probability: 1},
		"status=503@0.25": {kind: faultStatus, number: 503, probability: 0.25},
		"reset":           {kind: faultReset, probability: 1},
		"reset-after=3@0": {kind: faultResetAfter, number: 3},
		"hang@1":          {kind: faultHang, probability: 1},
		"idle=1s":         {kind: faultIdle, idle: time.Second, probability: 1},
	} {
		if got, err := ParseFault(text); err != nil || got != want {
			t.Errorf("%q is %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":               "there are latency=DURATION, status=CODE, reset, reset-after=N, hang and idle=DURATION",
		"explode":        "there are latency=DURATION",
		"latency=5":      `"5" is not a duration`,
		"latency=-1s":    `"-1s" is not a duration`,
		"status=200":     `"200" is not a status from 400 to 599`,
		"reset-after=-1": "is not a number of tokens",
		"reset=1":        "reset has no value",
		"idle=0s":        `"0s" is not a duration`,
		"hang@2":         `"2" is not a probability from 0 to 1`,
		"hang@NaN":       "is not a probability",
		"hang@":          `"" is not a probability`,
	} {
		if _, err := ParseFault(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error that says %q", text, err, want)
		}
	}
}

func TestFaultsOfOneRequest(t *testing.T) {
	inWorld(t, Config{Profile: slow()}, func(w *world) {
		a := w.post("/v1/completions", ask4("", 1), FaultHeader, "latency=1s")
		w.at(1.101, "the late answer")
		if a.status != http.StatusOK {
			t.Errorf("%d %s", a.status, a.body)
		}
		a = w.post("/v1/completions", ask4("", 1), FaultHeader, "latency=1ms, status=503")
		if a.status != http.StatusServiceUnavailable || a.get("error.code").Int() != 503 {
			t.Errorf("%d %s", a.status, a.body)
		}
		// The fault header works on every path, and an invalid fault is an error.
		if a = w.do("GET /health", "", FaultHeader, "status=500"); a.status != http.StatusInternalServerError {
			t.Errorf("/health: %d", a.status)
		}
		a = w.post("/v1/completions", ask4("", 1), FaultHeader, "explode")
		if a.status != http.StatusBadRequest || !strings.Contains(a.get("error.message").Str, "there are latency=DURATION") {
			t.Errorf("%d %s", a.status, a.body)
		}
		if resp, err := w.send(context.Background(), "POST /v1/completions", ask4("", 1), FaultHeader, "reset"); err == nil {
			w.close(resp)
			t.Error("a reset has an answer")
		}
		ctx, leave := context.WithTimeout(context.Background(), time.Hour)
		defer leave()
		if resp, err := w.send(ctx, "POST /v1/completions", ask4("", 1), FaultHeader, "hang"); err == nil {
			w.close(resp)
			t.Error("a hang has an answer")
		}
		w.wantMetrics(`sim:requests_total{path="/v1/completions",status="0"}`, "2.0",
			`sim:requests_total{path="/v1/completions",status="503"}`, "1.0")
	})
}

func TestStreamIsResetAfterItsTokens(t *testing.T) {
	inWorld(t, Config{Profile: slow()}, func(w *world) {
		resp := w.open(context.Background(), "/v1/completions", stream4, FaultHeader, "reset-after=2")
		var b bytes.Buffer
		_, err := io.Copy(&b, resp.Body)
		w.close(resp)
		if n := strings.Count(b.String(), "data: "); n != 2 || err == nil {
			t.Errorf("%d chunks came, then %v; want 2 and an error", n, err)
		}
		w.at(0.152, "the reset")
		w.wantMetrics("vllm:num_requests_running{", "0.0")

		// A reset after the last token cuts off nothing. The fault reset-after has no effect on an
		// answer that is not a stream.
		for _, body := range []string{stream4, ask4("", 4)} {
			if a := w.post("/v1/completions", body, FaultHeader, "reset-after=4"); a.status != http.StatusOK || a.body == "" {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
	})
}

func TestFaultsOfTheConfigurationHitRequestsForInferenceOnly(t *testing.T) {
	never, err := ParseFault("hang@0")
	if err != nil {
		t.Fatal(err)
	}
	half, err := ParseFault("status=503@0.5")
	if err != nil {
		t.Fatal(err)
	}
	outcome := func(seed uint64) string {
		var statuses strings.Builder
		inWorld(t, Config{Profile: slow(), Faults: []Fault{never, half}, Seed: seed}, func(w *world) {
			for range 40 {
				if a := w.post("/v1/completions", ask4("", 1)); a.status == http.StatusOK {
					statuses.WriteByte('.')
				} else {
					statuses.WriteByte('x')
				}
				if a := w.do("GET /health", ""); a.status != http.StatusOK {
					t.Errorf("/health: %d", a.status)
				}
			}
		})
		return statuses.String()
	}
	first := outcome(1)
	if n := strings.Count(first, "x"); n < 8 || n > 32 {
		t.Errorf("of 40 requests %d failed, want about 20: %s", n, first)
	}
	if again := outcome(1); again != first {
		t.Errorf("the same seed gives\n%s and then\n%s", first, again)
	}
	if outcome(2) == first {
		t.Error("another seed gives the same")
	}
}

// On a real network, the client of a reset connection gets a TCP reset instead of an orderly end.
func TestResetIsATCPReset(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Profile: slow(), Listener: listener})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- s.Run(ctx) }()

	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\n"+FaultHeader+": reset\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection ended with %v, want a reset", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	resp, err := client.Get("http://" + listener.Addr().String() + "/health")
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Get(ServedHeader); got != listener.Addr().String() {
		t.Errorf("served by %q, want %q", got, listener.Addr())
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	stop()
	client.CloseIdleConnections()
	if err := <-over; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// A connection is closed when it was idle for five seconds, unless a request arrives just then: an
// engine that had no CPU time reads it first, however late.
func TestIdleConnectionsAreClosed(t *testing.T) {
	for name, c := range map[string]struct {
		active time.Duration // when a request is read, after the connection became idle
		closed bool
	}{
		"in time":              {idleTimeout - time.Second, false},
		"after a stall":        {idleTimeout + readTime/2, false},
		"none for a long time": {time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := new(http.Server)
				closeIdle(server)
				conn, client := net.Pipe()
				defer client.Close()
				ctx := server.ConnContext(t.Context(), conn)
				server.ConnState(conn, http.StateNew)
				server.ConnState(conn, http.StateActive)
				server.ConnState(conn, http.StateIdle)
				ended := make(chan error, 1)
				go func() {
					_, err := conn.Read(make([]byte, 1))
					ended <- err
				}()
				time.Sleep(c.active)
				if !c.closed && idled(ctx) != c.active {
					t.Errorf("it was idle for %v, want %v", idled(ctx), c.active)
				}
				server.ConnState(conn, http.StateActive)
				time.Sleep(time.Hour)
				select {
				case err := <-ended:
					if !c.closed {
						t.Errorf("it was closed: %v", err)
					}
				default:
					if c.closed {
						t.Error("it was not closed")
					}
				}
				server.ConnState(conn, http.StateClosed)
			})
		})
	}
}
