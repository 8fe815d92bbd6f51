package stream_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headgate/headgate/extproc/codec"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/race"
)

const (
	// mostHeld is the most memory of a waiting request beside its body.
	mostHeld = 24 << 10
	// heldBody is the size of the body of each waiting request.
	heldBody = 4 << 10
)

// A waiting request takes at most 24 KB of memory beside its body, in each mode of the body. The
// data plane is another process, whose memory does not count.
func TestMemoryOfWaitingRequests(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes memory, too")
	}
	for _, mode := range []string{"BUFFERED", "FULL_DUPLEX_STREAMED"} {
		if n := memoryOfWaiting(t, mode, 1000); n > mostHeld {
			t.Errorf("in mode %s a waiting request takes %d bytes beside its body, want at most %d", mode, n, mostHeld)
		}
	}
}

// BenchmarkHeldRequest measures the memory of 10,000 waiting requests.
func BenchmarkHeldRequest(b *testing.B) {
	for _, mode := range []string{"BUFFERED", "FULL_DUPLEX_STREAMED"} {
		b.Run("mode="+mode, func(b *testing.B) {
			for b.Loop() {
				b.ReportMetric(float64(memoryOfWaiting(b, mode, 10_000)), "B/request")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// memoryOfWaiting returns how many bytes a waiting request takes beside its body: on the heap, and
// for the stacks of its goroutines. All requests wait for room at one endpoint.
func memoryOfWaiting(tb testing.TB, mode string, requests int) int64 {
	tb.Helper()
	var held *flow.Flow
	f := newFleetWith(fleet.Config{Freed: func(address, model string) { held.Freed(address, model) }}, func(s *objects.Set) {
		r := aRoute("shared", "base", "")
		r.Spec.TenantHeader = "x-tenant-id"
		s.Routes = append(s.Routes, r)
	})
	held = flow.New(flow.Config{View: f.View, MaxQueued: requests, MaxBytes: 1 << 30, Alone: true})
	s, _ := newServer(tb, f, func(c *stream.Config) {
		c.Flow, c.Settings.RequestsPerEndpoint, c.Settings.Policy.Rule = held, 1, pick.Latency
	})
	folder, err := os.MkdirTemp("", "held")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	socket := filepath.Join(folder, "s")
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "unix", socket)
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(stream.MaxMessage), grpc.MaxConcurrentStreams(1<<20), grpc.InTapHandle(stream.Endable),
		grpc.ForceServerCodecV2(codec.New()))
	extprocv3.RegisterExternalProcessorServer(server, s.For(stream.Own))
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			tb.Error(err)
		}
	}()
	x := s.ExchangeAt("", objects.Name{}, nil)
	defer x.End(time.Now())
	for _, line := range []string{"headers :method=POST :path=/v1/completions", `body {"model":"llama"}`} {
		if _, err := x.Receive(message(tb, line), time.Now()); err != nil {
			tb.Fatal(err)
		}
	}

	before := memory()
	client := exec.CommandContext(tb.Context(), os.Args[0], "-test.run=^TestHelperOfWaitingRequests$") //nolint:gosec // this test
	client.Env = append(os.Environ(), fmt.Sprintf("HEADGATE_HELD=%s %s %d", socket, mode, requests))
	stdin, err := client.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := client.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := client.Start(); err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = client.Wait() }()
	defer stdin.Close() // ends the other process
	for lines := bufio.NewScanner(stdout); ; {
		if !lines.Scan() {
			tb.Fatal("the data plane has ended")
		}
		if lines.Text() == "sent" {
			break
		}
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := int64(0); n != int64(requests); n, _ = held.Queued() {
		<-tick.C
	}
	return (memory()-before)/int64(requests) - heldBody
}

// memory returns the bytes on the heap and of stacks that are in use.
func memory() int64 {
	for range 3 { // the first ones also empty pools of buffers, and shrink stacks
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse) //nolint:gosec // less than all memory
}

// TestHelperOfWaitingRequests is no test, but the data plane of memoryOfWaiting: it sends requests
// until its standard input ends.
func TestHelperOfWaitingRequests(t *testing.T) {
	var socket, mode string
	var requests int
	if n, _ := fmt.Sscan(os.Getenv("HEADGATE_HELD"), &socket, &mode, &requests); n != 3 { //nolint:forbidigo // the parent gives it
		t.Skip("it is a part of another test")
	}
	const perConnection = 1000 // as in Envoy
	body := `{"model":"shared","prompt":"` + strings.Repeat("word ", heldBody)
	body = body[:heldBody-2] + `"}`
	for i := 0; i < requests; i += perConnection {
		conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		for j := range min(perConnection, requests-i) {
			hold(t, extprocv3.NewExternalProcessorClient(conn), mode, i+j, body)
		}
	}
	fmt.Println("sent")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// hold sends a request of one of 1,000 tenants, and returns when extproc makes it wait.
func hold(t *testing.T, client extprocv3.ExternalProcessorClient, mode string, number int, body string) {
	s, err := client.Process(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	headers := message(t, fmt.Sprintf("headers mode=%s :method=POST :path=/v1/completions content-type=application/json content-length=%d "+
		"x-request-id=11111111-2222-3333-4444-%012d x-tenant-id=tenant-%d", mode, len(body), number, number%1000))
	for _, m := range []*extprocv3.ProcessingRequest{headers, message(t, "body "+body)} {
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if mode != "BUFFERED" {
		return
	}
	for {
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetOverrideMessageTimeout() != nil {
			return
		}
	}
}
