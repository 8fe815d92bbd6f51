// Package stores runs real servers of storage for tests. They are built from the Go modules in
// tools/stores.
package stores

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/test/gobuild"
)

const (
	buildTimeout = 20 * time.Minute
	startTimeout = time.Minute
)

// programs are the servers by name.
var programs = map[string]gobuild.Program{
	"versitygw":       {Module: "stores", Path: "github.com/versity/versitygw/cmd/versitygw", Flags: "-s -w"},
	"registry":        {Module: "stores", Path: "github.com/distribution/distribution/v3/cmd/registry", Flags: "-s -w"},
	"fake-gcs-server": {Module: "stores", Path: "github.com/fsouza/fake-gcs-server", Flags: "-s -w"},
}

// Build builds servers by name and returns the folder of the binaries, below .cache of the
// repository at root. See [gobuild.Build].
func Build(ctx context.Context, root string, progress io.Writer, names ...string) (string, error) {
	return gobuild.Build(ctx, root, "stores", progress, programs, names...)
}

// Binary builds a server and returns its path.
func Binary(t testing.TB, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("short runs start no servers of storage")
	}
	root, err := gobuild.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	dir, err := Build(ctx, root, os.Stderr, name)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// Run starts a server and ends it when the test ends. It returns when the server answers 200 at the
// URL, or takes connections if that is tcp://HOST:PORT.
func Run(t testing.TB, cmd *exec.Cmd, url string) *process.Process {
	t.Helper()
	starter := process.NewStarter()
	server, err := starter.Start(filepath.Base(cmd.Path), t.TempDir(), cmd)
	if err != nil {
		close(starter)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Kill()
		close(starter)
		if t.Failed() {
			t.Log(server.LastWords())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	client := &http.Client{Timeout: time.Second}
	if address, ok := strings.CutPrefix(url, "tcp://"); ok {
		client.Transport = connecting(address)
	}
	defer client.CloseIdleConnections()
	if err := server.AwaitAnswer(ctx, client, url); err != nil {
		t.Fatal(err)
	}
	return server
}

// connecting is a transport that answers 200 if a server takes connections.
type connecting string

func (c connecting) RoundTrip(r *http.Request) (*http.Response, error) {
	connection, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", string(c))
	if err != nil {
		return nil, err
	}
	connection.Close()
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

// FreeAddress returns a loopback address whose port was free.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// S3 is a running versitygw.
type S3 struct {
	URL string
	// Access and Secret are the credentials of its owner.
	Access, Secret string
	// Dir has a folder for each bucket. Files in these are objects.
	Dir string
}

// RunS3 starts versitygw, a real server of S3, on a folder of files.
func RunS3(t testing.TB) S3 {
	t.Helper()
	s := S3{Access: "test-owner", Secret: "test-owner-SECRET", Dir: t.TempDir()}
	address := FreeAddress(t)
	s.URL = "http://" + address
	cmd := exec.Command(Binary(t, "versitygw"), "--port", address, "--health", "/health", "--quiet", "posix", s.Dir)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s.Access, "ROOT_SECRET_KEY="+s.Secret)
	Run(t, cmd, s.URL+"/health")
	return s
}

// RunGCS starts fake-gcs-server on an empty folder and returns its URL.
func RunGCS(t testing.TB) string {
	t.Helper()
	address := FreeAddress(t)
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + address
	Run(t, exec.Command(Binary(t, "fake-gcs-server"), "-scheme", "http", "-host", host, "-port", port, "-external-url", url,
		"-backend", "memory"), url+"/_internal/healthcheck")
	return url
}
