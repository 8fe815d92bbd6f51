package payload_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/payload"
	"github.com/headgate/headgate/extproc/payload/sink"
)

// other is a fake of the ext_proc service that makes decisions. Its errors identify it.
type other struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (other) Process(extprocv3.ExternalProcessor_ProcessServer) error {
	return status.Error(codes.AlreadyExists, "handled by the other service")
}

// served is a running Server, with a client that behaves like Envoy.
type served struct {
	*payload.Server
	t      *testing.T
	meter  *metrics.Meter
	log    *bytes.Buffer // to be read only after the server has stopped
	envoy  extprocv3.ExternalProcessorClient
	stop   func()
	server *grpc.Server
}

// serve runs a Server with these flags until the test or stop ends it.
func serve(t *testing.T, flags ...string) *served {
	t.Helper()
	var f payload.Flags
	fs := pflag.NewFlagSet("extproc", pflag.ContinueOnError)
	f.Register(fs)
	if err := fs.Parse(flags); err != nil {
		t.Fatal(err)
	}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
	s := &served{t: t, log: new(bytes.Buffer), meter: metrics.New(fleet.New(fleet.Config{}))}
	var err error
	if s.Server, err = f.Open(s.meter, slog.New(slog.NewJSONHandler(s.log, nil))); err != nil {
		t.Fatal(err)
	}
	listener := bufconn.Listen(1 << 20)
	s.server = grpc.NewServer(grpc.MaxRecvMsgSize(40 << 20))
	extprocv3.RegisterExternalProcessorServer(s.server, s.Beside(other{}))
	go func() { _ = s.server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///envoy", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	s.envoy = extprocv3.NewExternalProcessorClient(conn)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	s.stop = sync.OnceFunc(func() {
		cancel()
		<-ran
		_ = conn.Close()
		s.server.Stop()
	})
	t.Cleanup(s.stop)
	return s
}

// dropped returns the number of payloads that were dropped for a reason.
func (s *served) dropped(reason string) (n int) {
	s.t.Helper()
	return s.value("headgate_payloads_dropped_total{reason=\"" + reason + "\"}")
}

func (s *served) value(series string) (n int) {
	s.t.Helper()
	w := httptest.NewRecorder()
	s.meter.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	for line := range strings.SplitSeq(w.Body.String(), "\n") {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			_, _ = fmt.Sscan(rest, &n)
		}
	}
	return n
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: this never holds", what)
		}
	}
}

func headers(pairs ...string) *corev3.HeaderMap {
	m := new(corev3.HeaderMap)
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

// picked returns a decision of extproc as Envoy's metadata.
func picked(fields map[string]any) *corev3.Metadata {
	is, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err)
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{wire.PickNamespace: is}}
}

func one() map[string]any {
	return map[string]any{wire.PickPool: "ns/pool", wire.PickModel: "one", wire.PickID: "7"}
}

// show opens a stream with the copy of a request.
func (s *served) show(pick map[string]any, path string) extprocv3.ExternalProcessor_ProcessClient {
	s.t.Helper()
	messages, err := s.envoy.Process(metadata.AppendToOutgoingContext(s.t.Context(), wire.PayloadsMetadata, "copies"))
	if err != nil {
		s.t.Fatal(err)
	}
	_ = messages.Send(&extprocv3.ProcessingRequest{
		MetadataContext: picked(pick),
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: headers(":path", path, "tenant", "blue", "authorization", "Bearer secret"),
		}},
	})
	return messages
}

func asks(messages extprocv3.ExternalProcessor_ProcessClient, body []byte, end bool) {
	_ = messages.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: end},
	}})
}

// answers sends an answer with this body, and waits for the end of the stream.
func answers(messages extprocv3.ExternalProcessor_ProcessClient, body []byte) error {
	_ = messages.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headers(":status", "200")},
	}})
	_ = messages.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: body, EndOfStream: true},
	}})
	_, err := messages.Recv()
	return err
}

// taker is a sink that does not answer until the test allows it.
type taker struct {
	*httptest.Server
	begun atomic.Int64
	goOn  chan struct{}
	mu    sync.Mutex // guards all
	all   []string   // kind and data of each payload
}

func take(t *testing.T, held bool) *taker {
	k := &taker{goOn: make(chan struct{})}
	k.Server = httptest.NewServer(k)
	t.Cleanup(k.Close)
	if !held {
		close(k.goOn)
	}
	return k
}

func (k *taker) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	k.begun.Add(1)
	<-k.goOn
	var p struct {
		Kind string
		Data []byte
	}
	_ = json.Unmarshal(text, &p)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, p.Kind+" "+string(p.Data))
}

func (k *taker) taken() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string(nil), k.all...)
}

// Streams with copies go to the Server, and all other streams to the other service.
func TestOnlyCopiesAreProcessed(t *testing.T) {
	for _, flags := range [][]string{nil, {"--payload-processor", "logger://*"}} {
		s := serve(t, flags...)
		messages, err := s.envoy.Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := messages.Recv(); status.Code(err) != codes.AlreadyExists {
			t.Errorf("a stream that asks for a decision gets %v", err)
		}
		if err := answers(s.show(one(), "/x"), nil); !errors.Is(err, io.EOF) {
			t.Errorf("a stream with copies ends with %v", err)
		}
	}
}

// A sink gets the payloads that it wants, over TLS, with the current token from the file.
func TestSinkWithTLSAndAToken(t *testing.T) {
	dir := t.TempDir()
	var authorization, body atomic.Value
	var n atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		authorization.Store(r.Header.Get("Authorization"))
		if r.ContentLength != int64(len(text)) {
			t.Errorf("content-length %d of %d bytes", r.ContentLength, len(text))
		}
		body.Store(string(text))
		n.Add(1)
	}))
	defer server.Close()
	ca, token := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	write := func(path string, text []byte) {
		t.Helper()
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	write(token, []byte("first\n"))
	s := serve(t, "--payload-processor", server.URL+"/x?one#v2/models/one/infer", "--payload-ca-file", ca, "--payload-token-file", token)
	for i, c := range []struct {
		model, path string
		want        int64
	}{
		{"one", "/v2/models/one/infer?q", 2},
		{"two", "/v2/models/one/infer", 2},
		{"one", "/v2/models/one", 2},
		{"one", "/v2/models/one/infer", 4},
	} {
		pick := one()
		pick[wire.PickModel], pick[wire.PickVModel] = c.model, "latest"
		messages := s.show(pick, c.path)
		asks(messages, []byte("question"), true)
		if err := answers(messages, []byte("answer")); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		await(t, fmt.Sprintf("%d payloads are there", c.want), func() bool {
			return n.Load() == c.want && s.value("headgate_payloads_sent_total") == int(c.want)
		})
		if is := authorization.Load(); i == 0 && is != "Bearer first" {
			t.Errorf("the token is %v", is)
		}
	}
	if is, want := body.Load(),
		`{"id":"7","modelid":"one","vModelId":"latest","kind":"response","status":"200","metadata":{},"data":"YW5zd2Vy"}`; is != want {
		t.Errorf("the last is %s, want %s", is, want)
	}
	if s.Kept() != 0 {
		t.Errorf("%d bytes are kept", s.Kept())
	}
	// A sink with an unknown certificate gets nothing.
	strange := serve(t, "--payload-processor", server.URL)
	messages := strange.show(one(), "/x")
	asks(messages, nil, true)
	if err := answers(messages, nil); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	await(t, "it is counted", func() bool { return strange.dropped("failed") > 0 })
	if n.Load() != 4 {
		t.Error("it gets a payload")
	}
	var unknown x509.UnknownAuthorityError
	if strange.stop(); !strings.Contains(strange.log.String(), unknown.Error()) {
		t.Errorf("the log is %s", strange.log)
	}
}

// If a sink does not answer, payloads beyond its queue are dropped and counted. When it answers
// again, queued payloads arrive in order.
func TestQueueIsBounded(t *testing.T) {
	k := take(t, true)
	s := serve(t, "--payload-processor", k.URL, "--payload-queue", "6")
	const requests = 20
	for i := range requests {
		messages := s.show(one(), "/x")
		asks(messages, []byte(strconv.Itoa(i)), true)
		if err := answers(messages, nil); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if i == 1 { // each worker now has its first payload
			await(t, "two are being sent", func() bool { return k.begun.Load() == 2 })
		}
	}
	if n := s.dropped("queue"); n != 2*requests-6-2 {
		t.Errorf("%d of %d are dropped, while 6 wait and 2 are being sent", n, 2*requests)
	}
	close(k.goOn)
	await(t, "what waited has arrived", func() bool { return len(k.taken()) == 8 && s.value("headgate_payloads_sent_total") == 8 })
	last := map[int]int{}
	for _, text := range k.taken() {
		var i int
		if n, _ := fmt.Sscanf(text, "request %d", &i); n == 1 {
			if i < last[i%2] {
				t.Errorf("%v are not in order", k.taken())
			}
			last[i%2] = i
		}
	}
	await(t, "nothing is kept", func() bool { return s.Kept() == 0 })
	s.stop()
	if n := strings.Count(s.log.String(), "dropped"); n == 0 || strings.Count(s.log.String(), "\n") != 1 {
		t.Errorf("the log has more than one line per minute, or none:\n%s", s.log)
	}
}

// The bytes of all payloads, queued and incomplete, are limited. They are freed when the payload is
// sent or its stream ends.
func TestBytesAreBounded(t *testing.T) {
	goOn := make(chan struct{})
	k := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-goOn
	}))
	t.Cleanup(k.Close)
	s := serve(t, "--payload-processor", k.URL)
	large := make([]byte, 10<<20)
	var open []extprocv3.ExternalProcessor_ProcessClient
	for range 10 {
		messages := s.show(one(), "/x")
		asks(messages, large, false)
		open = append(open, messages)
	}
	await(t, "some are dropped", func() bool { return s.dropped("memory") >= 3 })
	if kept := s.Kept(); kept > payload.MaxKept+payload.MaxKept/4 || kept < payload.MaxKept/2 {
		t.Errorf("%d bytes are kept", kept)
	}
	for i, messages := range open {
		if i%2 == 0 {
			if err := messages.CloseSend(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		asks(messages, nil, true)
		if err := answers(messages, []byte("a")); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	await(t, "the incomplete ones are counted", func() bool { return s.dropped("cut") >= 1 })
	close(goOn)
	await(t, "nothing is kept", func() bool { return s.Kept() == 0 })
}

// A sink that answers with an error or a redirect gets each payload once, and no other server gets
// the payload.
func TestSinksThatRefuse(t *testing.T) {
	elsewhere := take(t, false)
	for _, code := range []int{302, 307, 400, 500} {
		var n atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			n.Add(1)
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(code)
		}))
		s := serve(t, "--payload-processor", server.URL)
		messages := s.show(one(), "/x")
		asks(messages, []byte("q"), true)
		if err := answers(messages, []byte("a")); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		await(t, "both are counted", func() bool { return s.dropped("failed") == 2 })
		if n.Load() != 2 || len(elsewhere.taken()) != 0 || s.value("headgate_payloads_sent_total") != 0 {
			t.Errorf("%d: %d calls, %d elsewhere", code, n.Load(), len(elsewhere.taken()))
		}
		s.stop()
		if n := strings.Count(s.log.String(), "\n"); n != 1 {
			t.Errorf("%d: the log has %d lines", code, n)
		}
		server.Close()
	}
}

// The logger sink logs the size and kind of payloads, but neither their contents nor headers.
func TestLoggerOmitsContents(t *testing.T) {
	s := serve(t, "--payload-processor", "logger://*?one http://127.0.0.1:1/none?other")
	messages := s.show(one(), "/v1/x?hidden")
	asks(messages, []byte("hidden"), true)
	if err := answers(messages, []byte("hidden, too")); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	await(t, "both are logged", func() bool { return s.value("headgate_payloads_sent_total") == 2 })
	s.stop()
	text := s.log.String()
	if strings.Contains(text, "hidden") || strings.Contains(text, "secret") || strings.Contains(text, "blue") ||
		!strings.Contains(text, `"id":"7","modelid":"one","vModelId":"","method":"v1/x","kind":"response","status":"200","bytes":11}`) {
		t.Errorf("the log is %s", text)
	}
}

// Requests that the relay repeats, that are for control, or that extproc made no decision for are
// not copied.
func TestRequestsThatAreNotCopied(t *testing.T) {
	k := take(t, false)
	s := serve(t, "--payload-processor", k.URL)
	inner, control := one(), one()
	inner[wire.PickRelay] = true
	delete(control, wire.PickPool)
	for _, pick := range []map[string]any{inner, control, nil} {
		if err := answers(s.show(pick, "/x"), nil); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}
	messages, err := s.envoy.Process(metadata.AppendToOutgoingContext(t.Context(), wire.PayloadsMetadata, "copies"))
	if err != nil {
		t.Fatal(err)
	}
	if err := answers(messages, nil); !errors.Is(err, io.EOF) { // Envoy itself answers a request that it sent to no endpoint
		t.Error(err)
	}
	first := s.show(map[string]any{wire.PickPool: "ns/pool"}, "/x") // a request for several models
	asks(first, []byte("q"), true)
	if err := answers(first, nil); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	await(t, "the last is copied", func() bool { return len(k.taken()) == 2 })
}

// If the Server stops while a sink does not answer and answers to requests are in progress, the
// Server ends within its time limit and leaves no goroutine.
func TestEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	k := &taker{goOn: make(chan struct{})}
	k.Server = httptest.NewServer(k)
	s := serve(t, "--payload-processor", k.URL)
	var open []extprocv3.ExternalProcessor_ProcessClient
	for range 50 {
		messages := s.show(one(), "/x")
		asks(messages, []byte("whole"), true)
		asks(messages, []byte("more"), false)
		open = append(open, messages)
	}
	await(t, "the sink hangs, and the rest waits", func() bool { return k.begun.Load() == 2 && s.Kept() == 50*int64(len("whole")) })
	began := time.Now()
	s.Close()
	for _, messages := range open {
		if _, err := messages.Recv(); status.Code(err) != codes.Unavailable {
			t.Fatalf("a stream ends with %v", err)
		}
	}
	if err := answers(s.show(one(), "/x"), nil); status.Code(err) != codes.Unavailable {
		t.Errorf("a late stream ends with %v", err)
	}
	s.stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it ends after %v", took)
	}
	if s.Kept() != 0 {
		t.Errorf("%d bytes are kept", s.Kept())
	}
	if n := s.dropped("failed") + s.value("headgate_payloads_sent_total"); n != 50 {
		t.Errorf("%d of 50 payloads are accounted for", n)
	}
	close(k.goOn)
	k.Close()
	await(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+1 })
}

// With many concurrent requests and two sinks, each sink gets each payload once.
func TestManyConcurrentRequests(t *testing.T) {
	a, b := take(t, false), take(t, false)
	s := serve(t, "--payload-processor", a.URL, "--payload-processor", b.URL, "--payload-queue", "10000")
	var group sync.WaitGroup
	const clients, requests = 20, 50
	for c := range clients {
		group.Go(func() {
			for i := range requests {
				messages := s.show(one(), "/x")
				asks(messages, fmt.Appendf(nil, "%d/%d", c, i), true)
				if err := answers(messages, []byte("a")); !errors.Is(err, io.EOF) {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	await(t, "all have come", func() bool { return len(a.taken()) == 2*clients*requests && len(b.taken()) == 2*clients*requests })
	for _, k := range []*taker{a, b} {
		seen := map[string]bool{}
		for _, text := range k.taken() {
			seen[text] = true
		}
		if len(seen) != clients*requests+1 {
			t.Errorf("%d are different", len(seen))
		}
	}
	await(t, "nothing is kept", func() bool { return s.Kept() == 0 })
}

func TestConflictingFlags(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "",
		"--payload-processor=ftp://x": "want http://",
		"--payload-queue=1":           "at least 2",
		"--payload-ca-file=x":         "need --payload-processor",
		"--payload-token-file=x":      "need --payload-processor",
		"--payload-processor=http://sink --payload-token-file=x":      "would send the token unencrypted",
		"--payload-processor=http://127.0.0.1 --payload-token-file=x": "",
		"--payload-processor=http://localhost --payload-token-file=x": "",
		"--payload-processor=https://sink --payload-token-file=x":     "",
		"--payload-processor=logger://* --payload-token-file=x":       "",
	} {
		var f payload.Flags
		fs := pflag.NewFlagSet("extproc", pflag.ContinueOnError)
		f.Register(fs)
		if err := fs.Parse(strings.Fields(text)); err != nil {
			t.Fatal(err)
		}
		err := f.Check()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if payload.DefaultQueue < 2 || sink.MaxBytes > payload.MaxKept {
		t.Error("flags that do not fit together are accepted")
	}
}
