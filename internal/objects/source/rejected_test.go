package source_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/source"
)

// Rejected gets the faults of rejected files with file and line, and none when they are corrected.
func TestRejected(t *testing.T) {
	folder := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, "pool.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(poolNamed("p"))
	all := make(chan []string, 100)
	s := source.Source{Dir: folder, Rejected: func(faults []string) { all <- faults }}
	ctx, cancel := context.WithCancel(t.Context())
	done, loaded := make(chan error, 1), make(chan bool, 100)
	go func() {
		done <- s.Follow(ctx, slog.New(slog.DiscardHandler), engineclient.NewTokens(nil), quiet{}, func(*objects.World) { loaded <- true })
	}()
	until := func(what string, is func(faults []string) bool) {
		t.Helper()
		for limit := time.After(10 * time.Second); ; {
			select {
			case faults := <-all:
				if is(faults) {
					return
				}
			case <-limit:
				t.Fatalf("no report: %s", what)
			}
		}
	}
	<-loaded
	until("all are valid", func(faults []string) bool { return len(faults) == 0 })
	write(poolNamed("p") + "---\nkind: LLMRoute\napiVersion: inference.x-k8s.io/v1alpha1\nmetadata: {name: x}\nspec: {x: 1}\n")
	until("one is rejected", func(faults []string) bool {
		return len(faults) == 1 && strings.HasPrefix(faults[0], filepath.Join(folder, "pool.yaml")+":")
	})
	write(poolNamed("p"))
	until("it is corrected", func(faults []string) bool { return len(faults) == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
