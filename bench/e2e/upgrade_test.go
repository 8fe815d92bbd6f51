package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/internal/process"
)

var upgrades = flag.Int("upgrades", 0, "replace Envoy, extproc and control under this `number` of requests in all")

// front is `headgate envoy` in front of a stack's extproc, in place of the stack's Envoy.
type front struct {
	*process.Process
	s      *stack
	binary string // link to the Envoy that the next reload starts
}

// behind replaces the Envoy of a stack by one that `headgate envoy` runs.
func (s *stack) behind(flags ...string) *front {
	s.t.Helper()
	s.Envoy.Kill()
	f := &front{s: s, binary: filepath.Join(s.t.TempDir(), "envoy")}
	f.install(s.Programs.Envoy)
	starter := process.NewStarter()
	var err error
	f.Process, err = starter.Start("front", s.Dir, exec.Command(s.Programs.Headgate, append([]string{
		"envoy", "--listen", s.Listen, "--extproc", "unix:" + filepath.Join(s.Dir, "extproc.sock"), "--admin", s.Admin,
		"--run-dir", s.shortDir(), "--envoy", f.binary, "--concurrency", "2",
	}, flags...)...))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		f.Stop(5 * time.Second)
		close(starter)
	})
	f.serves(1)
	return f
}

// shortDir returns a folder for sockets, whose paths must be short.
func (s *stack) shortDir() string {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// install makes a program the Envoy that the next reload starts.
func (f *front) install(program string) {
	f.s.t.Helper()
	path, err := filepath.Abs(program)
	if err == nil {
		err = os.Symlink(path, f.binary+".new")
	}
	if err == nil {
		err = os.Rename(f.binary+".new", f.binary)
	}
	if err != nil {
		f.s.t.Fatal(err)
	}
}

// another returns a program that is the given Envoy, but has another protocol of hot restarts.
func another(t *testing.T, envoy string) string {
	t.Helper()
	envoy, err := filepath.Abs(envoy)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "envoy")
	script := "#!/bin/sh\ncase \"$*\" in --hot-restart-version) echo 99.1 >&2; exit;; esac\nexec " + envoy + " \"$@\"\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func (f *front) lines(text string) int {
	f.s.t.Helper()
	log, err := os.ReadFile(f.Log)
	if err != nil {
		f.s.t.Fatal(err)
	}
	return bytes.Count(log, []byte(text))
}

// failures prints the access log's records of failed requests.
func (f *front) failures() {
	f.s.t.Helper()
	log, err := os.ReadFile(f.Log)
	if err != nil {
		f.s.t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, `"status":5`) {
			f.s.t.Log(strings.TrimSpace(line))
		}
	}
}

// serves waits until n Envoys have become ready.
func (f *front) serves(n int) {
	f.s.t.Helper()
	f.s.await(fmt.Sprintf("Envoy %d serves", n), func() bool {
		select {
		case <-f.Done():
			f.s.t.Fatalf("headgate envoy has ended:\n%s", f.LastWords())
		default:
		}
		return f.lines(`"msg":"Envoy serves"`) >= n
	})
}

// steady sends requests at a constant rate. Every second one has a connection of its own.
type steady struct {
	sent, failed atomic.Int64
	mu           sync.Mutex
	faults       []string
	stop         func()
}

func (s *stack) steady(rate int) *steady {
	s.t.Helper()
	l := new(steady)
	ctx, cancel := context.WithCancel(s.t.Context())
	var all sync.WaitGroup
	fresh := *s
	fresh.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	all.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			all.Go(func() {
				by := s
				if n%2 == 0 {
					by = &fresh
				}
				a, err := by.ask(context.WithoutCancel(ctx), completion(adapters[n%len(adapters)], 5, n%3 == 0))
				l.sent.Add(1)
				if fault := isOK(a, err); fault != "" {
					l.failed.Add(1)
					l.mu.Lock()
					l.faults = append(l.faults, time.Now().UTC().Format(time.StampMilli)+": "+fault)
					l.mu.Unlock()
				}
			})
		}
	})
	l.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	s.t.Cleanup(l.stop)
	return l
}

// idleTime is the time after a switch within which TestUpgradesFailNoRequest uses idle connections
// again.
const idleTime = 6 * time.Second

// unused opens n connections that stay idle after their first request. The returned function sends
// one more request on each, at a random time within idleTime, and returns what went wrong.
func (s *stack) unused(n int) (use func() []string) {
	s.t.Helper()
	type connection struct {
		net.Conn
		answers *bufio.Reader
	}
	send := func(c connection) error {
		body := completion("a01", 1, false).body
		if _, err := fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			len(body), body); err != nil {
			return err
		}
		response, err := http.ReadResponse(c.answers, nil)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s %s: %w", response.Status, text, err)
		}
		return nil
	}
	all := make([]connection, n)
	for i := range all {
		conn, err := net.Dial("tcp", s.Listen)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = conn.Close() })
		all[i] = connection{conn, bufio.NewReader(conn)}
		if err := send(all[i]); err != nil {
			s.t.Fatal(err)
		}
	}
	return func() (faults []string) {
		ends := make(chan error, n)
		for _, c := range all {
			go func() {
				after := rand.N(idleTime)
				<-time.After(after)
				err := send(c)
				_ = c.Close()
				if err != nil {
					err = fmt.Errorf("a connection that was idle for %v: %w", after, err)
				}
				ends <- err
			}()
		}
		for range n {
			if err := <-ends; err != nil {
				faults = append(faults, err.Error())
			}
		}
		return faults
	}
}

// migrates reports whether the kernel gives connections that nobody has accepted to another socket
// at the same port, when their socket is closed.
func migrates(t *testing.T) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_migrate_req")
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// Envoy is replaced by both ways, extproc by take-over and control by a restart. No request fails,
// and no stream is cut that runs meanwhile.
func TestUpgradesFailNoRequest(t *testing.T) {
	runs(t)
	requests, rate, streams, tokens, idle := 300, 100, 10, 1500, 100
	var settings []setting
	if *upgrades > 0 {
		requests, streams, tokens, idle = *upgrades, 50, 8000, 500
		settings = append(settings, placed(t, len(adapters), adapters...))
	}
	s := start(t, settings...)
	s.client.Transport.(*http.Transport).IdleConnTimeout = 2 * time.Second // the old Envoy ends when clients have closed their connections
	f := s.behind()
	type upgrade struct {
		what string
		do   func(n int)
	}
	hot := func(n int) {
		f.Signal(syscall.SIGHUP)
		f.serves(n)
	}
	all := []upgrade{
		{"Envoy by hot restart", hot},
		{"Envoy beside the old one", func(n int) {
			f.install(another(t, s.Programs.Envoy))
			hot(n)
		}},
	}
	if *upgrades > 0 {
		all = slices.Insert(all, 1, upgrade{"Envoy beside the old one, again", hot})
		all = append(all,
			upgrade{"Envoy beside the old one, and back", func(n int) {
				f.install(s.Programs.Envoy)
				hot(n)
			}},
			upgrade{"extproc by take-over", func(int) {
				if err := s.ReplaceExtproc(t.Context()); err != nil {
					t.Fatal(err)
				}
			}},
			upgrade{"control by a restart", func(int) {
				s.Control.Stop(10 * time.Second)
				if err := s.StartControl(t.Context()); err != nil {
					t.Fatal(err)
				}
			}},
		)
	}
	for _, name := range adapters {
		if a := s.must(completion(name, 1, false)); a.status != http.StatusOK { // with control, it is loaded now
			t.Fatalf("%s: %d %s", name, a.status, a.body)
		}
	}
	l := s.steady(rate)
	sent, failed := int64(0), int64(0)
	for i, u := range all {
		use := func() []string { return nil }
		if i == len(all)-1 || *upgrades > 0 { // waits for idleTime
			use = s.unused(idle)
		}
		ends := s.streams(streams, tokens)
		began := time.Now()
		u.do(i + 2)
		took := time.Since(began)
		if len(ends) > 0 {
			t.Errorf("%s: %d streams ended before it was done: they were too short", u.what, len(ends))
		}
		broken := use()
		for _, fault := range broken {
			t.Errorf("%s: %s", u.what, fault)
		}
		cut := 0
		for range streams {
			if err := <-ends; err != nil {
				cut++
				t.Errorf("%s: a stream did not survive: %v", u.what, err)
			}
		}
		if strings.HasPrefix(u.what, "Envoy") {
			s.await("the old Envoy has ended", func() bool { return f.lines("the old Envoy has completed its responses") == i+1 })
		}
		s.await("enough requests were answered", func() bool { return l.sent.Load() >= int64((i+1)*requests/len(all)) })
		t.Logf("%-36s done after %4d ms: %5d requests, %d failed; %d streams, %d cut; %d idle connections broken", u.what,
			took.Milliseconds(), l.sent.Load()-sent, l.failed.Load()-failed, streams, cut, len(broken))
		sent, failed = l.sent.Load(), l.failed.Load()
	}
	l.stop()
	reset := 0
	for _, fault := range l.faults {
		if !migrates(t) && strings.Contains(fault, "connection reset by peer") {
			reset++
			continue
		}
		t.Error(fault)
	}
	if reset > 0 {
		t.Logf("%d connections were reset that the old Envoy had not accepted: net.ipv4.tcp_migrate_req is 0 (docs/run.md)", reset)
	}
	t.Logf("%d of %d requests failed", l.failed.Load(), l.sent.Load())
	if l.failed.Load() > 0 {
		f.failures()
	}
	s.await("nothing is in flight", func() bool { return s.inFlight() == 0 })
}

// Envoy serves a request that it received before SIGTERM, even if extproc's relay sends the request
// through Envoy again. The relay does this after Envoy has closed its ports, since the only engine
// with the model has died.
func TestStoppedEnvoyServesItsLastRelayedRequest(t *testing.T) {
	runs(t)
	s := start(t, pods(t, 3), placed(t, 4, "a01"), loading(t, 0.3), extprocFlags("--scrape-interval", "6s", "--stale-after", "1h"),
		controlFlags("--scrape-interval", "6s"))
	f := s.behind()
	if a := s.must(completion("a01", 4, false)); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	s.client.CloseIdleConnections() // so that the connection of the last request is the only one
	s.Engines[slices.Collect(maps.Keys(held(s.events())))[0].engine].Kill()
	conn, err := net.Dial("tcp", s.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := completion("a01", 4, false).body
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body[:1]); err != nil {
		t.Fatal(err)
	}
	s.await("Envoy has the request", func() bool { return s.envoyGauge("http.ingress.downstream_rq_active") > 0 })
	f.Signal(syscall.SIGTERM)
	s.await("Envoy's port is closed", func() bool {
		other, err := net.Dial("tcp", s.Listen)
		if err == nil {
			_ = other.Close()
		}
		return err != nil
	})
	if _, err := io.WriteString(conn, body[1:]); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || !response.Close {
		t.Errorf("the last request: %s %s, closes: %v, %v", response.Status, text, response.Close, err)
	}
	_ = conn.Close() // as clients do then
	ended := time.Now()
	s.await("headgate envoy has ended", func() bool {
		select {
		case <-f.Done():
			return true
		default:
			return false
		}
	})
	if took := time.Since(ended); took > 4*time.Second {
		t.Errorf("it ends %v after its last answer, though nobody keeps a connection", took)
	}
	if f.lines(`"attempts":2`) == 0 {
		t.Error("no request was relayed")
	}
}

// An Envoy that does not become ready changes nothing, and one that crashes is started again.
func TestBadEnvoyChangesNothing(t *testing.T) {
	runs(t)
	s := start(t)
	f := s.behind()
	dir := t.TempDir()
	const versions = `case "$*" in --version) echo x/1.40.0;; --hot-restart-version) echo 99.1;; `
	for i, c := range []struct{ script, log string }{
		{"exit 3", "--version prints no version of Envoy"},
		{"echo 'envoy  version: 9e55/1.39.2/Clean/RELEASE/BoringSSL'", "is 1.39: set it to the path of Envoy's binary"},
		{versions + `*validate*) echo 'bad field' >&2; exit 1;; esac`, "rejects the configuration: bad field"},
		{versions + `*validate*) ;; *) exit 4;; esac`, "exit status 4"},
	} {
		path := filepath.Join(dir, strconv.Itoa(i))
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		f.install(path)
		f.Signal(syscall.SIGHUP)
		s.await(c.log, func() bool {
			return f.lines("did not become ready; the current one stays") == i+1 && f.lines(c.log) == 1
		})
		if a := s.must(completion("a01", 1, false)); a.status != 200 {
			t.Errorf("%s: then a request gets %d", c.script, a.status)
		}
	}
	f.install(s.Programs.Envoy)
	children := func() string {
		out, err := exec.Command("pgrep", "-P", strconv.Itoa(f.PID())).Output()
		if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	answer, err := s.client.Post("http://"+s.Admin+"/quitquitquit", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _ = answer.Body.Close(); answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("the admin interface answers a POST with %d", answer.StatusCode)
	}
	pid, err := strconv.Atoi(children())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.serves(2)
	s.await("it answers again", func() bool {
		a, err := s.ask(t.Context(), completion("a01", 1, false))
		return err == nil && a.status == 200
	})
	envoy := children()
	if envoy == "" {
		t.Fatal("there is no Envoy")
	}
	f.Kill()
	s.await("Envoy ends with its supervisor", func() bool {
		_, err := os.Stat("/proc/" + envoy)
		return os.IsNotExist(err)
	})
}

// keyed is an engine that records which headers requests have.
type keyed struct {
	mu    sync.Mutex
	heads []http.Header
}

func (k *keyed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"m","object":"model"}]}`))
	case "/v1/completions":
		k.mu.Lock()
		k.heads = append(k.heads, r.Header.Clone())
		k.mu.Unlock()
		_, _ = w.Write([]byte(`{"choices":[]}`))
	default:
		http.NotFound(w, r)
	}
}

// last returns the headers of the last request.
func (k *keyed) last() http.Header {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.heads) == 0 {
		return nil
	}
	return k.heads[len(k.heads)-1]
}

// certificate writes a new certificate for 127.0.0.1 and returns it.
func certificate(t *testing.T, cert, key string) []byte {
	t.Helper()
	made, err := listen.Certify(time.Now(), time.Hour, false, "localhost")
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	if err == nil {
		err = os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made.Certificate[0]}), 0o600)
	}
	if err == nil {
		err = os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return made.Certificate[0]
}

// Clients need a key from the file. The engine gets the client's name, and no key. Changed files
// count without a restart; an invalid one does not.
func TestClientsNeedTLSAndAKey(t *testing.T) {
	runs(t)
	engine := new(keyed)
	server := httptest.NewServer(engine)
	t.Cleanup(server.Close)
	s := start(t, func(c *rig.Config) { c.Endpoints = []string{server.Listener.Addr().String()} })
	dir := t.TempDir()
	keys, cert, key := filepath.Join(dir, "keys"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(keys, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# clients\nalice=key-of-alice\nbob=key-of-bob\n")
	first := certificate(t, cert, key)
	f := s.behind("--tls-cert", cert, "--tls-key", key, "--api-keys", keys, "--envoy-log-level", "info") // the lowest level that is allowed
	s.url = strings.Replace(s.url, "http://", "https://", 1)
	presented := make(chan []byte, 1)
	s.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true,
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			select {
			case <-presented:
			default:
			}
			presented <- raw[0]
			return nil
		},
	}}}
	ask := func(path, header, value string) answer {
		t.Helper()
		r := completion("m", 1, false)
		r.path, r.header = path, map[string]string{"x-headgate-client": "forged"}
		if header != "" {
			r.header[header] = value
		}
		return s.must(r)
	}
	for _, c := range []struct{ header, value, client string }{
		{"authorization", "Bearer key-of-alice", "alice"},
		{"x-api-key", "key-of-bob", "bob"},
		{"api-key", "key-of-alice", "alice"},
		{"authorization", "Bearer key-of-carol", ""},
		{"x-other", "key-of-alice", ""},
		{"", "", ""},
	} {
		a := ask("/v1/completions", c.header, c.value)
		if c.client == "" {
			refused(t, fmt.Sprintf("with %s: %s", c.header, c.value), a, http.StatusUnauthorized, "invalid_api_key")
			continue
		}
		got := engine.last()
		if a.status != 200 || got.Get("x-headgate-client") != c.client || len(got.Values("x-headgate-client")) != 1 {
			t.Errorf("with %s: %d %s, and the engine gets %v", c.header, a.status, a.body, got)
		}
		if text := fmt.Sprint(got); strings.Contains(text, "key-of") {
			t.Errorf("the engine gets a key: %s", text)
		}
	}
	for path, want := range map[string]string{
		"/v1/messages":        `{"type":"error","error":{"type":"authentication_error","message":"Send a valid API key`,
		"/v2/models/m/infer":  `{"error":"Send a valid API key`,
		"/v1/chat/completion": `{"error":{"message":"Send a valid API key`,
	} {
		if a := ask(path, "", ""); a.status != http.StatusUnauthorized || !strings.HasPrefix(a.body, want) ||
			a.header.Get("content-type") != "application/json" || a.header.Get("www-authenticate") != "Bearer" {
			t.Errorf("%s: %d %s %v", path, a.status, a.body, a.header)
		}
	}
	if a := s.must(request{method: http.MethodGet, path: "/healthz"}); a.status != 200 {
		t.Errorf("the health check needs a key: %d", a.status)
	}
	if a, err := s.ask(t.Context(), request{path: "/a.Service/Call", header: map[string]string{"content-type": "application/grpc"}}); err != nil ||
		a.header.Get("grpc-status") != "16" {
		t.Errorf("a gRPC call: %v, %v", a.header, err)
	}

	write("alice=key-of-alice\nbob key-of-bob\n")
	s.await("an invalid file is reported", func() bool { return f.lines("keys:2: the line must be NAME=KEY") == 1 })
	if a := ask("/v1/completions", "x-api-key", "key-of-bob"); a.status != 200 {
		t.Errorf("with an invalid file: %d", a.status)
	}
	write("carol=key-of-carol\n")
	second := certificate(t, cert, key)
	s.await("the new key counts", func() bool { return ask("/v1/completions", "x-api-key", "key-of-carol").status == 200 })
	if a := ask("/v1/completions", "x-api-key", "key-of-bob"); a.status != http.StatusUnauthorized {
		t.Errorf("an old key: %d", a.status)
	}
	if bytes.Equal(first, second) {
		t.Fatal("the certificates are the same")
	}
	s.await("the new certificate counts", func() bool {
		_ = s.must(request{method: http.MethodGet, path: "/healthz"})
		return bytes.Equal(<-presented, second)
	})
	if f.lines(`"msg":"Envoy serves"`) != 1 {
		t.Error("Envoy was restarted")
	}
	s.await("the access log names the clients", func() bool { return f.lines(`"client":"bob"`) == 2 && f.lines(`"client":"carol"`) > 0 })
	dump, err := (&http.Client{}).Get("http://" + s.Admin + "/config_dump")
	if err != nil {
		t.Fatal(err)
	}
	defer dump.Body.Close()
	text, err := io.ReadAll(dump.Body)
	if err != nil || !bytes.Contains(text, []byte("api_keys")) {
		t.Errorf("the admin interface shows no configuration: %v", err)
	}
	if bytes.Contains(text, []byte("key-of-")) || f.lines("key-of-") > 0 || f.lines("forged") > 0 {
		t.Error("a key is in a log or in the admin interface")
	}
}
