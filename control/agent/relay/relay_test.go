package relay

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// patience is how long a test waits for something that must happen.
const patience = 20 * time.Second

// world is a relay, and the engine behind it, which a test starts and stops.
type world struct {
	*testing.T
	relay  *Relay
	log    *syncBuffer
	stop   context.CancelFunc
	ended  chan error
	engine net.Listener
	serve  func(duplex) // serves one connection of the engine
}

// host is an address of this machine whose ports no other process uses.
const host = "127.94.0.1"

// freePort returns the address of a port that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start starts a relay to an engine that serves connections with serve, on a port or on a Unix
// socket. The engine is not up yet.
func start(t *testing.T, network string, serve func(duplex), change func(*Config), own ...func(*Relay)) *world {
	t.Helper()
	w := &world{T: t, log: new(syncBuffer), ended: make(chan error, 1), serve: serve}
	at := freePort(t)
	if network == "unix" {
		at = "unix:" + filepath.Join(t.TempDir(), "engine")
	}
	engine, err := ParseEndpoint(at)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Listen: freePort(t), Engine: engine, Log: slog.New(slog.NewTextHandler(w.log, nil))}
	if change != nil {
		change(&c)
	}
	if w.relay, err = New(c); err != nil {
		t.Fatal(err)
	}
	for _, set := range own {
		set(w.relay)
	}
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	go func() { w.ended <- w.relay.Run(ctx) }()
	await(t, "the relay sees no engine", func() bool { return strings.Contains(w.log.String(), "refusing connections") })
	t.Cleanup(func() {
		stop()
		w.down()
		w.end()
	})
	return w
}

// end waits until Run has returned.
func (w *world) end() {
	w.Helper()
	select {
	case err := <-w.ended:
		if err != nil {
			w.Error(err)
		}
		w.ended <- nil
	case <-time.After(patience):
		w.Error("Run does not return")
	}
	if n := w.relay.count(); n != 0 {
		w.Errorf("%d connections are left", n)
	}
}

// up starts the engine.
func (w *world) up() {
	w.Helper()
	l, err := net.Listen(w.relay.config.Engine.Network, w.relay.config.Engine.Address)
	if err != nil {
		w.Fatal(err)
	}
	w.engine = l
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				w.serve(conn.(duplex)) //nolint:forcetypeassert // a connection of the network
				_ = conn.Close()
			}()
		}
	}()
}

// down stops the engine from accepting.
func (w *world) down() {
	if w.engine != nil {
		_ = w.engine.Close()
	}
}

// dial connects to the relay, which must accept.
func (w *world) dial() duplex {
	w.Helper()
	conn, err := net.Dial("tcp", w.relay.config.Listen)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if w.relay.config.TLS != nil {
		return tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	}
	return conn.(duplex) //nolint:forcetypeassert // TCP
}

// refuses reports whether the relay refuses a connection.
func (w *world) refuses() bool {
	conn, err := net.Dial("tcp", w.relay.config.Listen)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// exchange sends a byte to an engine that echoes, and reads it.
func exchange(c net.Conn) error {
	_, _ = c.Write([]byte("x"))
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// echoing waits until the relay accepts a connection to an engine that echoes.
func (w *world) echoing() (conn net.Conn) {
	w.Helper()
	await(w.T, "the relay relays", func() bool {
		var err error
		if conn, err = net.Dial("tcp", w.relay.config.Listen); err != nil {
			return false
		}
		w.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(patience))
		return exchange(conn) == nil
	})
	return conn
}

// accepting waits until the relay accepts connections.
func (w *world) accepting() {
	w.Helper()
	await(w.T, "the relay accepts", func() bool { return !w.refuses() })
}

// echo sends back what it reads until the client has ended.
func echo(c duplex) { _, _ = io.Copy(c, c) }

// networks calls a test with each network of the engine, and with and without TLS.
func networks(t *testing.T, test func(t *testing.T, network string, change func(*Config))) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) { test(t, network, nil) })
		t.Run(network+" and TLS", func(t *testing.T) {
			secure, err := TLS("", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			test(t, network, func(c *Config) { c.TLS = secure })
		})
	}
}

func noise(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

// Bytes pass in both directions at once, and the client may end its side first.
func TestLargeTransfers(t *testing.T) {
	networks(t, func(t *testing.T, network string, change func(*Config)) {
		w := start(t, network, echo, change)
		w.up()
		w.accepting()
		sent := noise(8 << 20)
		client := w.dial()
		go func() {
			_, _ = client.Write(sent)
			_ = client.CloseWrite()
		}()
		got, err := io.ReadAll(client)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes of %d came back, %v", len(got), len(sent), err)
		}
	})
}

// The engine may answer after the client has ended its side, and the client may go on after the
// engine has ended its own.
func TestSidesEndSeparately(t *testing.T) {
	networks(t, func(t *testing.T, network string, change func(*Config)) {
		late := make(chan string, 1)
		w := start(t, network, func(c duplex) {
			first := make([]byte, 1)
			if _, err := io.ReadFull(c, first); err != nil {
				return // a check
			}
			if first[0] == 'a' { // answers at the end
				rest, _ := io.ReadAll(c)
				fmt.Fprintf(c, "%d", len(rest))
				return
			}
			_, _ = io.WriteString(c, "end")
			_ = c.CloseWrite()
			rest, _ := io.ReadAll(c)
			late <- string(rest)
		}, change)
		w.up()
		w.accepting()
		client := w.dial()
		_, _ = io.WriteString(client, "a12345")
		_ = client.CloseWrite()
		if got, err := io.ReadAll(client); err != nil || string(got) != "5" {
			t.Errorf("after the client's end: %q, %v", got, err)
		}
		client = w.dial()
		_, _ = io.WriteString(client, "b")
		if got, err := io.ReadAll(client); err != nil || string(got) != "end" {
			t.Errorf("before the engine's end: %q, %v", got, err)
		}
		_, _ = io.WriteString(client, "more")
		_ = client.CloseWrite()
		select {
		case got := <-late:
			if got != "more" {
				t.Errorf("after its end the engine gets %q", got)
			}
		case <-time.After(patience):
			t.Error("the engine never gets the client's end")
		}
	})
}

// A reset is passed on as such in both directions: a cut answer does not look like a whole one.
func TestResetsArePassedOn(t *testing.T) {
	broken := make(chan error, 1)
	w := start(t, "tcp", func(c duplex) {
		first := make([]byte, 1)
		if _, err := io.ReadFull(c, first); err != nil {
			return // a check
		}
		if first[0] == 'a' {
			_, _ = io.WriteString(c, "half")
			reset(c)
			return
		}
		_, err := io.Copy(io.Discard, c)
		if err == nil {
			_, err = io.Copy(c, endless{}) // the client has ended only its side, as far as the engine knows
		}
		broken <- err
	}, nil)
	w.up()
	w.accepting()
	client := w.dial()
	_, _ = io.WriteString(client, "a")
	if got, err := io.ReadAll(client); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after a reset of the engine: %q, %v", got, err)
	}
	client = w.dial()
	_, _ = io.WriteString(client, "b")
	await(t, "the connection is open", func() bool { return w.relay.count() == 1 })
	reset(client)
	select {
	case err := <-broken:
		if err == nil {
			t.Error("after a reset of the client the engine has no error")
		}
	case <-time.After(patience):
		t.Error("the engine does not learn that the client is gone")
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// An engine that answers before it has read the whole request, and then ends the connection, has
// answered.
func TestAnswerBeforeTheEndOfARequest(t *testing.T) {
	deaf := make(chan struct{})
	w := start(t, "unix", func(c duplex) {
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return // a check
		}
		_ = c.(*net.UnixConn).CloseRead() //nolint:forcetypeassert // of the network
		close(deaf)
		time.Sleep(lastAnswer / 10) // the relay fails to send meanwhile
		_, _ = io.WriteString(c, "413")
	}, nil)
	w.up()
	w.accepting()
	client := w.dial()
	_, _ = client.Write([]byte("x"))
	<-deaf
	_, _ = client.Write([]byte("more"))
	answer := make([]byte, 3)
	if _, err := io.ReadFull(client, answer); err != nil || string(answer) != "413" {
		t.Errorf("the client gets %q, %v", answer, err)
	}
}

// seldom lets a relay check its engine only for a reason.
func seldom(r *Relay) { r.poll = time.Hour }

// While the engine refuses connections, so does the relay. An engine that dies with connections, or
// that restarts, is noticed at once.
func TestItRefusesWhileTheEngineDoes(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			var mu sync.Mutex
			var conns []net.Conn
			w := start(t, network, func(c duplex) {
				mu.Lock()
				conns = append(conns, c)
				mu.Unlock()
				echo(c)
			}, nil, seldom)
			await(t, "it refuses before the engine is up", w.refuses)
			if err := w.relay.Ready(t.Context()); err == nil {
				t.Error("it is ready before the engine")
			}
			away := func() int { return strings.Count(w.log.String(), "the engine accepts no connections") }
			for round := range 3 {
				w.up()
				w.accepting()
				if err := w.relay.Ready(t.Context()); err != nil {
					t.Error(err)
				}
				client := w.echoing()
				w.down()
				mu.Lock()
				for _, c := range conns {
					_ = c.Close()
				}
				conns = nil
				mu.Unlock()
				if n, err := client.Read(make([]byte, 1)); err == nil {
					t.Errorf("a dead engine sends %d bytes", n)
				}
				await(t, "it sees the engine's end", func() bool { return away() > round+1 })
				if !w.refuses() {
					t.Error("it accepts after the engine's end")
				}
			}
		})
	}
}

// A client that connects before the relay notices that the engine is gone is reset. It must not
// wait. Then the relay refuses connections at once.
func TestClientOfADeadEngineIsReset(t *testing.T) {
	w := start(t, "tcp", echo, nil, seldom)
	w.up()
	_ = w.echoing().Close()
	await(t, "no connection is open", func() bool { return w.relay.count() == 0 })
	time.Sleep(5 * suspectInterval) // so that nothing is left to check
	w.down()
	conn, err := net.Dial("tcp", w.relay.config.Listen)
	if err == nil {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client gets %v", err)
	}
	await(t, "it refuses", w.refuses)
}

// An engine that dies without connections is noticed at the next check.
func TestEngineThatDiesIdle(t *testing.T) {
	w := start(t, "tcp", echo, nil, func(r *Relay) { r.poll = 20 * time.Millisecond })
	w.up()
	_ = w.echoing().Close()
	w.down()
	await(t, "it stops accepting", func() bool { return strings.Count(w.log.String(), "the engine accepts no connections") == 2 })
	if !w.refuses() {
		t.Error("it accepts")
	}
}

// When its context ends, the relay accepts no more connections, and open ones continue.
func TestOpenConnectionsOutliveTheEnd(t *testing.T) {
	w := start(t, "unix", echo, nil)
	w.up()
	w.accepting()
	client := w.dial()
	said := func(text string) {
		t.Helper()
		_, _ = io.WriteString(client, text)
		got := make([]byte, len(text))
		if _, err := io.ReadFull(client, got); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	said("before")
	w.stop()
	await(t, "it refuses after the end", w.refuses)
	said("after")
	select {
	case err := <-w.ended:
		t.Errorf("Run returns with an open connection: %v", err)
	default:
	}
	_ = client.Close()
	w.end()
	if !strings.Contains(w.log.String(), "waiting for open ones to end") {
		t.Errorf("the log is %s", w.log)
	}
}

// More connections than the limit are refused, with one log line. When one ends, there is room.
func TestLimitOfConnections(t *testing.T) {
	registry := prometheus.NewRegistry()
	w := start(t, "tcp", echo, func(c *Config) { c.MaxConnections, c.Metrics = 2, registry })
	w.up()
	w.accepting()
	open := []net.Conn{w.echoing(), w.echoing()}
	await(t, "it refuses the third", w.refuses)
	for _, c := range open {
		if err := exchange(c); err != nil {
			t.Error(err)
		}
	}
	_ = open[0].Close()
	_ = w.echoing().Close()
	if n := strings.Count(w.log.String(), "as many connections as the limit of open files permits: raise it (ulimit -n)"); n != 1 {
		t.Errorf("%d log lines:\n%s", n, w.log)
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 4 {
		t.Errorf("%d metrics, %v", len(families), err)
	}
}

// A client that stays after the engine has ended its side is left after a while. While it sends, it
// may stay.
func TestClientThatStays(t *testing.T) {
	got := make(chan int, 1)
	w := start(t, "tcp", func(c duplex) {
		_ = c.CloseWrite()
		if n, _ := io.Copy(io.Discard, c); n > 0 {
			got <- int(n)
		}
	}, nil, func(r *Relay) { r.lastWords = 300 * time.Millisecond })
	w.up()
	w.accepting()
	client := w.dial()
	const words = 8
	for range words {
		_, _ = io.WriteString(client, "x")
		time.Sleep(w.relay.lastWords / 4) // the test is about silence
	}
	select {
	case n := <-got:
		if n != words {
			t.Errorf("the engine got %d bytes", n)
		}
	case <-time.After(patience):
		t.Error("the connection stays")
	}
	await(t, "the connection ends", func() bool { return w.relay.count() == 0 })
}

// A client without a TLS handshake does not keep its connection, and one that ends at once leaves
// nothing.
func TestNothingIsLeft(t *testing.T) {
	files := func() int {
		runtime.GC() // the pipes of splice are pooled
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(entries)
	}
	files()
	beforeFiles, before := files(), runtime.NumGoroutine()
	t.Run("connections", func(t *testing.T) {
		networks(t, func(t *testing.T, network string, change func(*Config)) {
			w := start(t, network, echo, change)
			w.up()
			w.accepting()
			var all sync.WaitGroup
			for i := range 40 {
				all.Go(func() {
					conn, err := net.Dial("tcp", w.relay.config.Listen)
					if err != nil {
						t.Error(err)
						return
					}
					_ = conn.SetDeadline(time.Now().Add(patience))
					_, _ = conn.Write(make([]byte, 100))
					switch i % 4 {
					case 0:
						reset(conn)
					case 1:
						_, _ = conn.Read(make([]byte, 100))
						_ = conn.Close()
					case 2:
						_ = conn.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // TCP
						_, _ = io.Copy(io.Discard, conn)
						_ = conn.Close()
					default:
						_ = conn.Close()
					}
				})
			}
			all.Wait()
			await(t, "all connections end", func() bool { return w.relay.count() == 0 })
		})
	})
	await(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
	await(t, "no file is left", func() bool { return files() <= beforeFiles })
}

// An address that is in use is an error at the start.
func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, err := New(Config{Listen: l.Addr().String(), Engine: Endpoint{"unix", "/nowhere"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--data "+l.Addr().String()) {
		t.Error(err)
	}
}

// A client that offers one protocol gets that one, and HTTP/1.1 if it offers both.
func TestProtocolsOverTLS(t *testing.T) {
	secure, err := TLS("", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, "tcp", echo, func(c *Config) { c.TLS = secure })
	w.up()
	w.accepting()
	for want, offer := range map[string][]string{"h2": {"h2"}, "http/1.1": {"h2", "http/1.1"}, "": nil} {
		conn, err := tls.Dial("tcp", w.relay.config.Listen,
			&tls.Config{NextProtos: offer, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.ConnectionState().NegotiatedProtocol; got != want {
			t.Errorf("who offers %v gets %q", offer, got)
		}
		_ = conn.Close()
	}
	if _, err := TLS(t.TempDir(), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a folder without a certificate is no error")
	}
}

func TestEndpoints(t *testing.T) {
	for text, want := range map[string]Endpoint{
		"127.0.0.1:8000": {"tcp", "127.0.0.1:8000"}, "port:8001": {"tcp", "127.0.0.1:8001"}, ":8002": {"tcp", "127.0.0.1:8002"},
		"[::1]:9": {"tcp", "[::1]:9"}, "localhost:80": {"tcp", "localhost:80"},
		"unix:/socks/rt.sock": {"unix", "/socks/rt.sock"}, "unix:///socks/rt.sock": {"unix", "/socks/rt.sock"},
		"": {}, "8000": {}, "host:": {}, "host:0": {}, "host:70000": {}, "unix:": {}, "port:x": {},
	} {
		got, err := ParseEndpoint(text)
		if got != want || (err == nil) != (want != Endpoint{}) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestConnectionsPerLimitOfOpenFiles(t *testing.T) {
	for files, want := range map[uint64]int{0: 1, 100: 1, 1024: 128, 1 << 20: 174720, 1 << 63: 1 << 20} {
		if got := maxConnections(files); got != want {
			t.Errorf("%d files: %d connections, want %d", files, got, want)
		}
	}
	r, err := New(Config{MaxConnections: 1})
	if err != nil || !r.admit() || r.admit() {
		t.Errorf("it does not admit just one connection: %v", err)
	}
	if r.release(); !r.admit() {
		t.Error("there is no room after one has ended")
	}
}

// syncBuffer is a buffer for logs of several goroutines.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
