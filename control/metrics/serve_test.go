package metrics

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestLoopbackIsServedToo(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:9091": "", "127.66.1.1:9091": "", "[::1]:9091": "", // these are loopback
		"0.0.0.0:9091": "", "[::]:9091": "", // these include loopback
		"10.0.0.7:9091": "127.0.0.1:9091", "[fd00::7]:80": "127.0.0.1:80",
	} {
		at, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if got := loopbackBeside(at); got != want {
			t.Errorf("beside %s: %q, want %q", address, got, want)
		}
	}
}

// lines is a log that may be read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// ports waits until a log contains n ports, and returns them.
func (l *lines) ports(t *testing.T, n int) (ports []string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(10 * time.Second); ; {
		found := regexp.MustCompile(`"address":".*:(\d+)"`).FindAllStringSubmatch(l.String(), -1)
		for _, match := range found {
			ports = append(ports, match[1])
		}
		if len(ports) == n {
			return ports
		}
		ports = nil
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("the log names %d ports: %s", len(found), l.String())
		}
	}
}

func says(t *testing.T, url, want string) {
	t.Helper()
	response, err := http.Get(url) //nolint:noctx // one question
	if err != nil {
		t.Error(err)
		return
	}
	page, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if !strings.Contains(string(page), want) {
		t.Errorf("%s says %s", url, page)
	}
}

// If the address does not include loopback, Serve serves at that address and on loopback. Both end
// with its context.
func TestLoopbackIsServedBesides(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var log lines
	more := func(a net.Addr) string {
		if a.(*net.TCPAddr).IP.String() == "127.0.0.2" {
			return "127.0.0.3:0"
		}
		return ""
	}
	done := make(chan error, 1)
	go func() {
		done <- serve(ctx, "127.0.0.2:0", more, New().Handler(nil), slog.New(slog.NewJSONHandler(&log, nil)))
	}()
	ports := log.ports(t, 2)
	says(t, "http://127.0.0.2:"+ports[0]+"/healthz", "ok")
	says(t, "http://127.0.0.3:"+ports[1]+"/models", "another control leads: ask that one")
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run returns %v", err)
	}
	cannot := func(net.Addr) string { return "127.0.0.3:x" }
	if err := serve(t.Context(), "127.0.0.2:0", cannot, nil, slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "--metrics-port 127.0.0.3:x") {
		t.Errorf("the error of an invalid second address is %v", err)
	}
}

// Serving at all addresses includes loopback. An address that is in use is an error.
func TestServe(t *testing.T) {
	for _, host := range []string{"127.0.0.1", ""} {
		ctx, stop := context.WithCancel(t.Context())
		var log lines
		done := make(chan error, 1)
		m := New()
		go func() { done <- m.Serve(ctx, host, 0, nil, slog.New(slog.NewJSONHandler(&log, nil))) }()
		port := log.ports(t, 1)[0]
		says(t, "http://127.0.0.1:"+port+"/healthz", "ok")
		says(t, "http://127.0.0.1:"+port+"/models", "another control leads: ask that one")
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at := taken.Addr().(*net.TCPAddr).Port
		if err := m.Serve(ctx, "127.0.0.1", at, nil, slog.New(slog.DiscardHandler)); err == nil ||
			!strings.Contains(err.Error(), "--metrics-port 127.0.0.1:") {
			t.Errorf("the error of a port in use is %v", err)
		}
		_ = taken.Close()
		stop()
		if err := <-done; err != nil {
			t.Errorf("%q: Run returns %v", host, err)
		}
	}
}
