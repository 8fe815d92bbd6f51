//go:build bench

package files_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awscredentials "github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/test/stores"
)

var (
	benchBy   = flag.String("bench.by", "", "what downloads in this process: agent or sdk")
	benchURL  = flag.String("bench.url", "", "URL of the server")
	benchDir  = flag.String("bench.dir", "", "folder for the files")
	benchSize = flag.Int64("bench.bytes", 1<<30, "bytes of the object")
	benchRuns = flag.Int("bench.runs", 7, "downloads by each")
)

const (
	benchOwner, benchSecret = "test-owner", "test-owner-SECRET"
	// maxSDK is the longest time that a download may take, relative to the SDK's.
	maxSDK = 1.3
	// maxMemory is the most memory of the process in MiB, and partMiB the size of a part.
	maxMemory, partMiB = 128, 8
)

// TestBenchChild is the process that TestBenchS3 measures: it downloads the object once, and prints
// how long that took and the most memory that it had. Its end takes longer, because the agent syncs
// files after it has returned them.
func TestBenchChild(t *testing.T) {
	began := time.Now()
	defer func() {
		fmt.Printf("Seconds: %f\n", time.Since(began).Seconds())
		status, _ := os.ReadFile("/proc/self/status")
		os.Stdout.Write(status)
	}()
	switch *benchBy {
	case "":
		t.Skip("TestBenchS3 starts it")
	case "sdk":
		file, err := os.Create(filepath.Join(*benchDir, "large"))
		if err != nil {
			t.Fatal(err)
		}
		client := transfermanager.New(benchClient(*benchURL), func(o *transfermanager.Options) { o.Concurrency = 8 })
		_, err = client.DownloadObject(t.Context(), &transfermanager.DownloadObjectInput{
			Bucket: aws.String("bucket"), Key: aws.String("large"), WriterAt: file,
		})
		if err != nil || file.Close() != nil {
			t.Fatal(err)
		}
	case "agent":
		s, err := files.Open(files.Config{
			Dir: *benchDir, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			Open: func(ctx context.Context, src storage.Source) (fetch.Remote, error) {
				return fetch.Open(ctx, src, fetch.Options{})
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Fetch(t.Context(), "model", storage.Source{
			Scheme: storage.S3, URI: "s3://bucket/large", Bucket: "bucket", Path: "large", Fields: map[string]string{
				"endpoint_url": *benchURL, "access_key_id": benchOwner, "secret_access_key": benchSecret, "region": "us-east-1",
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// benchClient returns the SDK's client of a server.
func benchClient(url string) *s3.Client {
	return s3.New(s3.Options{
		Credentials: awscredentials.NewStaticCredentialsProvider(benchOwner, benchSecret, ""), Region: "us-east-1",
		BaseEndpoint: &url, UsePathStyle: true,
	})
}

// printed returns a number that a child printed after a word. The kernel's memory count of a
// process that has ended would include what its parent had when it started it.
func printed(t *testing.T, out *bytes.Buffer, word string) (n float64) {
	t.Helper()
	_, rest, _ := strings.Cut(out.String(), word)
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatalf("the process did not print %s: %v\n%s", word, err, out)
	}
	return n
}

// child returns the command of a process that downloads.
func child(by, url, dir string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestBenchChild$", "-bench.by="+by, "-bench.url="+url, "-bench.dir="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

// TestBenchS3 downloads a large object from versitygw, by the agent and by the AWS SDK in turn, and
// prints how long it takes and how much memory it needs. Then it kills the agent halfway, and
// prints how many bytes are sent twice.
func TestBenchS3(t *testing.T) {
	server := stores.RunS3(t)
	if err := os.Mkdir(filepath.Join(server.Dir, "bucket"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A file without an upload has no ETag, and a download without one cannot be continued.
	block := noise(1, 1<<20)
	var blocks []io.Reader
	for range *benchSize >> 20 {
		blocks = append(blocks, bytes.NewReader(block))
	}
	_, err := transfermanager.New(benchClient(server.URL)).UploadObject(t.Context(),
		&transfermanager.UploadObjectInput{Bucket: aws.String("bucket"), Key: aws.String("large"), Body: io.MultiReader(blocks...)})
	if err != nil {
		t.Fatal(err)
	}
	seconds, memory := make(map[string][]float64), make(map[string][]float64)
	for i := range *benchRuns + 1 { // the first of each warms caches
		for _, by := range []string{"agent", "sdk"} {
			dir := t.TempDir()
			cmd, out := child(by, server.URL, dir)
			if err := cmd.Run(); err != nil {
				t.Fatalf("%s: %v\n%s", by, err, out)
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			syscall.Sync() // the next one does not wait for the disk
			if i > 0 {
				seconds[by] = append(seconds[by], printed(t, out, "Seconds:"))
				memory[by] = append(memory[by], printed(t, out, "VmHWM:")/1024)
			}
		}
	}
	var ratios []float64
	for i := range seconds["sdk"] {
		ratios = append(ratios, seconds["agent"][i]/seconds["sdk"][i])
	}
	fmt.Printf("%s from versitygw, %d downloads by each in turn: median (smallest to largest)\n", files.Size(*benchSize), *benchRuns)
	for _, by := range []string{"agent", "sdk"} {
		fmt.Printf("  %-6s seconds %s, memory in MiB %s\n", by, spread(seconds[by]), spread(memory[by]))
	}
	fmt.Printf("  time of the agent / time of the SDK: %s, target at most %.1f\n", spread(ratios), maxSDK)
	if median(ratios) > maxSDK || slices.Max(memory["agent"]) > maxMemory {
		t.Error("the target is missed")
	}
	killHalfway(t, server.URL)
}

// killHalfway kills a download halfway and lets another process complete it. It counts what the
// server sends.
func killHalfway(t *testing.T, server string) {
	target, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	var sent, asked atomic.Int64
	half := make(chan struct{})
	var network wire
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodGet {
				asked.Add(max(0, r.ContentLength))
			}
			r.Body = &counted{r.Body, func(n int) {
				network.wait(n)
				if now := sent.Add(int64(n)); now >= *benchSize/2 && now-int64(n) < *benchSize/2 {
					close(half)
				}
			}}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {}, // the process that was killed
		ErrorLog:     slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	front := httptest.NewServer(proxy)
	defer front.Close()
	dir := t.TempDir()
	first, out := child("agent", front.URL, dir)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	<-half
	_ = first.Process.Kill()
	if err := first.Wait(); err == nil {
		t.Fatalf("the process ended before it was killed:\n%s", out)
	}
	front.CloseClientConnections()
	before := sent.Load()
	asked.Store(0)
	second, out := child("agent", front.URL, dir)
	if err := second.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	twice := float64(before+asked.Load()-*benchSize) / (1 << 20)
	fmt.Printf("killed after %s, at %s per second: %.1f MiB are sent twice, target at most one part of %d MiB\n", files.Size(before),
		files.Size(wireRate), twice, partMiB)
	if twice > partMiB {
		t.Error("the target is missed")
	}
	want, err := os.ReadFile(filepath.Join(dir, "model", "large"))
	if err != nil || int64(len(want)) != *benchSize {
		t.Fatalf("the file has %d bytes: %v", len(want), err)
	}
	block := noise(1, 1<<20)
	for i := 0; i < len(want); i += len(block) {
		if !bytes.Equal(want[i:i+len(block)], block) {
			t.Fatalf("the file is wrong in the block at %d", i)
		}
	}
}

// wireRate is the speed of a wire in bytes per second. If the network is not slower than the agent,
// the bytes that are sent twice are those in the kernel's buffers.
const wireRate = 200 << 20

// wire is a network of limited speed.
type wire struct {
	mu   sync.Mutex
	free time.Time // when the bytes before have passed
}

// wait waits until n bytes have passed.
func (w *wire) wait(n int) {
	w.mu.Lock()
	if now := time.Now(); w.free.Before(now) {
		w.free = now
	}
	w.free = w.free.Add(time.Duration(n) * time.Second / wireRate)
	until := w.free
	w.mu.Unlock()
	time.Sleep(time.Until(until))
}

// counted is a body that reports what is read.
type counted struct {
	io.ReadCloser
	read func(int)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if n > 0 {
		c.read(n)
	}
	return n, err
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// spread formats a median with the smallest and the largest value.
func spread(values []float64) string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", median(values), slices.Min(values), slices.Max(values))
}
