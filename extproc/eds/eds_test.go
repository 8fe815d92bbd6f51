package eds_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/headgate/headgate/extproc/eds"
)

// read returns the version of a file and the endpoints that it lists.
func read(t *testing.T, path string) (version string, addresses []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, text)
}

func parse(t *testing.T, text []byte) (version string, addresses []string) {
	t.Helper()
	var r discoveryv3.DiscoveryResponse
	if err := protojson.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.GetResources()) != 1 {
		t.Fatalf("%d resources", len(r.GetResources()))
	}
	var a endpointv3.ClusterLoadAssignment
	if err := errors.Join(r.GetResources()[0].UnmarshalTo(&a), r.ValidateAll(), a.ValidateAll()); err != nil || a.GetClusterName() != "endpoints" {
		t.Fatalf("%v of the cluster %q", err, a.GetClusterName())
	}
	for _, locality := range a.GetEndpoints() {
		for _, e := range locality.GetLbEndpoints() {
			s := e.GetEndpoint().GetAddress().GetSocketAddress()
			addresses = append(addresses, s.GetAddress()+" "+slog.IntValue(int(s.GetPortValue())).String())
		}
	}
	return r.GetVersionInfo(), addresses
}

func TestTheFileListsTheEndpoints(t *testing.T) {
	text, err := eds.Render([]string{"10.0.0.1:8000", "10.0.0.1:8001", "[fd00::1]:80"})
	if err != nil {
		t.Fatal(err)
	}
	version, got := parse(t, text)
	if want := []string{"10.0.0.1 8000", "10.0.0.1 8001", "fd00::1 80"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	again, _ := eds.Render([]string{"10.0.0.1:8000", "10.0.0.1:8001", "[fd00::1]:80"})
	if string(again) != string(text) || strings.Contains(string(text), ":  ") {
		t.Errorf("equal endpoints give\n%s and\n%s", text, again)
	}
	other, _ := eds.Render([]string{"10.0.0.1:8000"})
	if v, _ := parse(t, other); v == version || len(v) != 16 {
		t.Errorf("other endpoints have the version %s, these %s", v, version)
	}
	none, _ := eds.Render(nil)
	if _, got := parse(t, none); len(got) != 0 {
		t.Errorf("no endpoints are %v", got)
	}
	if _, err := eds.Render([]string{"engine:8000"}); err == nil {
		t.Error("a name is accepted as an address")
	}
}

func TestAnEndpointIsListedAtOnceAndLeavesLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "eds.json")
	synctest.Test(t, func(t *testing.T) {
		f, err := eds.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("a file is written before endpoints are known")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx, slog.New(slog.DiscardHandler)) }()
		began := time.Now()
		check := func(at time.Duration, want ...string) {
			t.Helper()
			time.Sleep(time.Until(began.Add(at)))
			synctest.Wait()
			if _, got := read(t, path); !slices.Equal(got, want) {
				t.Errorf("after %v it lists %v, want %v", at, got, want)
			}
		}
		set := func(addresses ...string) {
			t.Helper()
			if err := f.Set(addresses); err != nil {
				t.Fatal(err)
			}
		}
		set("10.0.0.1:80", "10.0.0.2:80")
		check(0, "10.0.0.1 80", "10.0.0.2 80")
		check(1500*time.Millisecond, "10.0.0.1 80", "10.0.0.2 80")
		set("10.0.0.1:80", "10.0.0.3:80")
		check(1500*time.Millisecond, "10.0.0.1 80", "10.0.0.2 80", "10.0.0.3 80")
		set("10.0.0.3:80")
		set("10.0.0.3:80", "10.0.0.1:80") // it comes back before it has left
		check(11400*time.Millisecond, "10.0.0.1 80", "10.0.0.2 80", "10.0.0.3 80")
		check(13*time.Second, "10.0.0.1 80", "10.0.0.3 80")
		set()
		check(30 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Envoy looks at the file again each time that one is moved there.
func TestOnlyNewsIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eds.json")
	id := func() os.FileInfo {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	open := func() *eds.File {
		t.Helper()
		f, err := eds.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	set := func(f *eds.File, addresses ...string) os.FileInfo {
		t.Helper()
		if err := f.Set(addresses); err != nil {
			t.Fatal(err)
		}
		return id()
	}
	f := open()
	first := set(f, "10.0.0.1:80", "10.0.0.2:80")
	if !os.SameFile(first, set(f, "10.0.0.2:80", "10.0.0.1:80")) {
		t.Error("the same endpoints in another order are written again")
	}
	if !os.SameFile(first, set(open(), "10.0.0.1:80", "10.0.0.2:80")) {
		t.Error("the next process writes the same endpoints again")
	}
	if os.SameFile(first, set(f, "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")) {
		t.Error("the file is changed in place, where Envoy may read half of it")
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func TestAFileThatCannotBeWrittenIsAnError(t *testing.T) {
	if _, err := eds.Open("/proc/nowhere/eds.json"); err == nil || !strings.Contains(err.Error(), "/proc/nowhere") {
		t.Errorf("%v", err)
	}
	if _, err := eds.Open(t.TempDir()); err == nil {
		t.Error("a folder is taken for the file")
	}
	dir := filepath.Join(t.TempDir(), "later")
	f, err := eds.Open(filepath.Join(dir, "eds.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := f.Set([]string{"10.0.0.1:80"}); err == nil {
		t.Error("no error where the folder is gone")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := f.Set([]string{"10.0.0.1:80"}); err != nil {
		t.Errorf("with the folder back: %v", err)
	}
}
