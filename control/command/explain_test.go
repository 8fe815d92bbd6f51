package command

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// With --explain-config, control prints its effective configuration with sources, in extproc's
// format. It does not serve, and stores nothing.
func TestSettingsAreExplained(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "objects")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	text := "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: base}\nspec: {selector: {matchLabels: {app: x}}, targetPorts: [{number: 8000}]}\n" +
		"---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: mine}\nspec: {poolRef: {name: base}, placement: {maxAdapters: 3}}\n"
	if err := os.WriteFile(filepath.Join(dir, "o.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Run(t.Context(), []string{"--objects", dir, "--explain-config", "--scrape-interval", "3s"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"--scrape-interval 3s flag --scrape-interval", "--drain-timeout 1m0s default", "--state-file " + dir + ".db default",
		"POOL default/base",
		"placement.maxAdapters 3 PoolSettings default/mine, " + dir + "/o.yaml:8 adapters", "placement.hostAdapters unknown default",
		"placement.source {id} default",
	} {
		if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, want) {
			t.Errorf("it lacks %q:\n%s", want, out.String())
		}
	}
	if _, err := os.Stat(dir + ".db"); !os.IsNotExist(err) {
		t.Errorf("the state is there: %v", err)
	}
}
