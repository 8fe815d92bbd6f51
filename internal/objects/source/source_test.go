package source_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/source"
)

// quiet is a Meter that ignores everything.
type quiet struct{}

func (quiet) Refused(int)   {}
func (quiet) Readable(bool) {}

// problems is a log that keeps the logged problems.
type problems struct {
	mu   sync.Mutex
	told []string
}

func (p *problems) Write(record []byte) (int, error) {
	var r struct{ Level, Problem string }
	if err := json.NewDecoder(bytes.NewReader(record)).Decode(&r); err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Problem != "" {
		p.told = append(p.told, r.Level+" "+r.Problem)
	}
	return len(record), nil
}

func (p *problems) all() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.told, "\n")
}

func poolNamed(name string) string {
	return "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: " + name +
		"}\nspec: {selector: {matchLabels: {app: x}}, targetPorts: [{number: 8000}]}\n"
}

// A pool that a flag names but that does not exist is logged once, and again after it has been
// created and deleted. The program goes on.
func TestPoolThatAFlagNamesIsMissed(t *testing.T) {
	folder := t.TempDir()
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, "pool.yaml"), []byte(poolNamed(name)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("other")
	s := source.Source{Dir: folder, Named: map[string]objects.Name{"pool-name": {Namespace: "default", Name: "mine"}, "mesh-pool": {}}}
	const missed = "--pool-name names InferencePool default/mine, which does not exist"
	if w, err := s.Read(t.Context()); err != nil || !slices.Equal(w.Problems, []string{missed}) {
		t.Errorf("read once, the problems are %v, %v", w.Problems, err)
	}

	log := new(problems)
	worlds := make(chan *objects.World, 16)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.Follow(ctx, slog.New(slog.NewJSONHandler(log, nil)), engineclient.NewTokens(nil), quiet{}, func(w *objects.World) {
			worlds <- w
		})
	}()
	until := func(pool string) *objects.World {
		t.Helper()
		for limit := time.After(10 * time.Second); ; {
			select {
			case w := <-worlds:
				if w.Pools[objects.Name{Namespace: "default", Name: pool}] != nil {
					return w
				}
			case <-limit:
				t.Fatalf("no World has the pool %s", pool)
			}
		}
	}
	if w := until("other"); len(w.Problems) != 1 {
		t.Errorf("the World's problems are %v", w.Problems)
	}
	write("third")
	until("third")
	if got, want := log.all(), "WARN "+missed; got != want {
		t.Errorf("while it is missed, this is told:\n%s\nwant\n%s", got, want)
	}
	write("mine")
	if w := until("mine"); len(w.Problems) != 0 {
		t.Errorf("when it is there the problems are %v", w.Problems)
	}
	write("other")
	until("other")
	if got, want := log.all(), "WARN "+missed+"\nWARN "+missed; got != want {
		t.Errorf("when it is gone, this was told:\n%s\nwant\n%s", got, want)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
