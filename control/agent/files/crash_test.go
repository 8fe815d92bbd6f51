package files_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
	"github.com/headgate/headgate/control/agent/storage"
)

// crashDir is set in the process that TestCrash kills.
var crashDir = flag.String("crash.dir", "", "folder of the process that the test kills")

const (
	crashSources  = 6
	crashVersions = 3
)

// crashSource returns a version of a source, the same in each process. The last one is an archive.
func crashSource(t *testing.T, i, version int) *source {
	s := &source{version: version, digests: i == 1}
	s.content = make(map[string][]byte)
	var items []item
	for name, body := range crashText(i, version) {
		s.content[name] = []byte(body)
		items = append(items, item{name: name, body: body})
	}
	if i == crashSources-1 {
		s.content = map[string][]byte{"x.tar": tarOf(t, items...)}
		s.archives = map[string]fetch.Archive{"x.tar": {Format: "tar"}}
	}
	return s
}

// crashText returns the files that a model of such a source has.
func crashText(i, version int) map[string]string {
	n := uint64(10*i + version)
	all := map[string]string{"a": string(noise(n, 300_000+50_000*i)), "sub/b": string(noise(n+1000, 1000))}
	for j := range 40 { // so that a folder takes time to make and to remove
		all[fmt.Sprint("many/", j)] = string(noise(n, 10+j))
	}
	return all
}

func crashConfig(m *memory, dir string) files.Config {
	return files.Config{
		Dir: dir, Open: m.Open, PartSize: 64 << 10, Limit: 1_800_000, Concurrency: 4, Log: slog.New(slog.DiscardHandler),
	}
}

// TestCrashChild is the process that TestCrash kills: it fetches and releases models for ever.
func TestCrashChild(t *testing.T) {
	if *crashDir == "" {
		t.Skip("TestCrash starts it")
	}
	var all [crashSources][crashVersions]*source
	for i := range crashSources {
		for v := range crashVersions {
			all[i][v] = crashSource(t, i, v)
		}
	}
	m := newMemory()
	open := func(_ context.Context, src storage.Source) (fetch.Remote, error) {
		var i int
		_, err := fmt.Sscanf(src.URI, "s3://b/%d", &i)
		own := newMemory()
		own.sources[src.URI] = all[i][rand.IntN(crashVersions)]
		own.open++
		return &opened{own, src.URI}, err
	}
	c := crashConfig(m, *crashDir)
	c.Open = open
	s, err := files.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("READY")
	var workers sync.WaitGroup
	for w := range 3 {
		workers.Go(func() {
			for {
				id := fmt.Sprintf("m%d-%d", w, rand.IntN(2))
				if rand.IntN(2) == 0 {
					_ = s.Release(id)
					continue
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(30))*time.Millisecond)
				_, _ = s.Fetch(ctx, id, of(fmt.Sprint("s3://b/", rand.IntN(crashSources))))
				cancel()
			}
		})
	}
	workers.Wait()
}

// A process that is killed at any moment leaves only whole files under names that engines read. The
// next process has these models, and goes on with the rest.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	kills, models, kept := 0, 0, int64(0)
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline) || kills < 5; kills++ {
		crash(t, dir)
		m := newMemory()
		s, err := files.Open(crashConfig(m, dir))
		if err != nil {
			t.Fatal(err)
		}
		names := []string{}
		for _, model := range s.Models() {
			models++
			names = append(names, model.ID)
			var i int
			if _, err := fmt.Sscanf(model.URI, "s3://b/%d", &i); err != nil {
				t.Fatal(err)
			}
			got := tree(t, model.Local.Path)
			if !slices.ContainsFunc([]int{0, 1, 2}, func(v int) bool { return equal(got, crashText(i, v)) }) {
				t.Fatalf("kill %d: %s has files of no version of %s", kills, model.ID, model.URI)
			}
		}
		for _, name := range childNames(t, dir) {
			if !strings.HasPrefix(name, "_") && !slices.Contains(names, name) {
				t.Fatalf("kill %d: there is a folder %s of no model", kills, name)
			}
		}
		if used, measured := s.Used(), s.Measured(); used != measured || used > 1_800_000 {
			t.Fatalf("kill %d: %d bytes count, %d are on disk", kills, used, measured)
		}
		kept += s.Used()
		// What is kept serves a model again, and what was interrupted can be completed.
		i, version := rand.IntN(crashSources), rand.IntN(crashVersions)
		m.sources[fmt.Sprint("s3://b/", i)] = crashSource(t, i, version)
		if err := s.Purge(); err != nil {
			t.Fatal(err)
		}
		if local := get(t, s, "check", fmt.Sprint("s3://b/", i)); !equal(tree(t, local.Path), crashText(i, version)) {
			t.Fatalf("kill %d: the files of source %d are not those of version %d", kills, i, version)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills, %d models, %d bytes kept", kills, models, kept)
	if models == 0 || kept == 0 {
		t.Error("no process lived long enough to make a model")
	}
}

// crash starts a process that uses dir, and kills it.
func crash(t *testing.T, dir string) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestCrashChild$", "-crash.dir="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
	_ = child.Process.Kill()
	_ = child.Wait()
	if err != nil || line != "READY\n" {
		t.Fatalf("the process did not start: %q, %v", line, err)
	}
}

// equal reports whether files have the same content.
func equal(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for name := range a {
		if a[name] != b[name] {
			return false
		}
	}
	return true
}

// childNames returns the names in a folder.
func childNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		names = append(names, d.Name())
	}
	return names
}
