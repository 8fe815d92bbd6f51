package placementserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/place/placementserver"
)

// extprocsAt is the first argument of the process that simulates the extprocs; the second is
// control's address.
const extprocsAt = "extprocs-at"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == extprocsAt {
		if err := drive(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// The load of the benchmark: all extprocs together send 1,000 requests per second, and each request
// lasts 2 s.
const (
	driven    = 8
	endpoints = 64
	perSecond = 1000
	lasting   = 2 * time.Second
	driving   = 5 * time.Second
)

// BenchmarkBacklogs measures the CPU time that control needs to send extprocs the backlogs of the
// others. The extprocs run in another process. Run it once: -benchtime 1x.
func BenchmarkBacklogs(b *testing.B) {
	l, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := placementserver.New(slog.New(slog.DiscardHandler))
	s.SetPlacer(&placer{inFlight: map[string]int{}})
	s.Ready()
	server := grpc.NewServer()
	placement.RegisterPlacementServer(server, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	used := func(of int) time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(of, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	var ours, theirs, took time.Duration
	var updates, reports, entries float64
	for b.Loop() {
		began, here, there := time.Now(), used(syscall.RUSAGE_SELF), used(syscall.RUSAGE_CHILDREN)
		extprocs := exec.CommandContext(b.Context(), os.Args[0], extprocsAt, l.Addr().String())
		out, err := extprocs.Output()
		if err != nil {
			b.Fatal(err)
		}
		var r, u, e float64
		if _, err := fmt.Sscan(string(out), &r, &u, &e); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		took, ours, theirs = took+time.Since(began), ours+used(syscall.RUSAGE_SELF)-here, theirs+used(syscall.RUSAGE_CHILDREN)-there
		reports, updates, entries = reports+r, updates+u, entries+e
	}
	server.Stop()
	serving.Wait()
	b.ReportMetric(ours.Seconds()/took.Seconds(), "cores")
	b.ReportMetric(theirs.Seconds()/took.Seconds()/driven, "cores/extproc")
	b.ReportMetric(reports/took.Seconds(), "reports/s")
	b.ReportMetric(updates/took.Seconds(), "updates/s")
	b.ReportMetric(entries/took.Seconds(), "endpoints/s")
}

// drive simulates the extprocs. It prints the number of Reports sent, the number of Updates
// received, and the number of endpoints in these Updates.
func drive(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), driving)
	defer cancel()
	var reports, updates, entries atomic.Int64
	var all sync.WaitGroup
	errs := make(chan error, 2*driven)
	for n := range driven {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		stream, err := placement.NewPlacementClient(conn).Connect(ctx)
		if err != nil {
			return err
		}
		all.Go(func() {
			for {
				u, err := stream.Recv()
				if err != nil {
					break
				}
				updates.Add(1)
				entries.Add(int64(len(u.GetBacklogs())))
			}
		})
		all.Go(func() {
			errs <- load(ctx, n, func(r *placement.Report) error {
				reports.Add(1)
				return stream.Send(r)
			})
		})
	}
	all.Wait()
	for range driven {
		if err := <-errs; err != nil {
			return err
		}
	}
	fmt.Println(reports.Load(), updates.Load(), entries.Load())
	return nil
}

// load reports the backlogs of one extproc every 20 ms.
func load(ctx context.Context, n int, send func(*placement.Report) error) error {
	if err := send(&placement.Report{Process: fmt.Sprint("p", n)}); err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var has [endpoints]placement.Backlog
	const each = perSecond / driven * 20 // requests of one extproc that begin in 1,000 ticks
	next := uint64(n)
	for ticks := 1; ; ticks++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		r := &placement.Report{}
		changed := make(map[uint64]bool)
		change := func(by int64) {
			next = next*6364136223846793005 + 1442695040888963407
			i := next >> 32 % endpoints
			b := &has[i]
			if by < 0 && b.Requests == 0 {
				return
			}
			b.Endpoint = fmt.Sprintf("10.0.%d.1:8000", i)
			b.Requests += uint32(by)
			b.PrefillUs = uint64(max(0, by)) * 200_000
			b.BesidePs, b.Urgency, b.Tokens = uint64(b.Requests)*2e8, uint64(b.Requests)*10_000, uint64(b.Requests)*1000
			changed[i] = true
		}
		for range ticks*each/1000 - (ticks-1)*each/1000 {
			change(1)
		}
		if t := ticks - int(lasting/(20*time.Millisecond)); t > 0 {
			for range t*each/1000 - (t-1)*each/1000 {
				change(-1)
			}
		}
		for i := range changed {
			r.Backlogs = append(r.Backlogs, &has[i])
		}
		if err := send(r); err != nil {
			return nil //nolint:nilerr // the time is over
		}
	}
}
