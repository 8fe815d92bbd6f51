package cost

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/ext"
	"github.com/headgate/headgate/headgate/envoy/adapt"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// worldOf returns what extproc makes of a file of objects beside --endpoints.
func worldOf(t *testing.T, text string) *objects.World {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "all.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	set, err := dir.Read(folder, kinds.All())
	if err != nil {
		t.Fatal(err)
	}
	more := objects.Endpoints([]string{"127.0.0.1:8000"})
	set.Pools, set.Lists = append(set.Pools, more.Pools...), append(set.Lists, more.Lists...)
	w := objects.Build(set)
	for _, p := range w.Problems {
		t.Errorf("%v in\n%s", p, text)
	}
	return w
}

// The objects are valid and belong to the pool of --endpoints.
func TestObjectsAreValid(t *testing.T) {
	w := worldOf(t, objectsYAML(3, 4))
	if n := w.Objects["LLMRoute"]; n != 3 {
		t.Errorf("%d routes of 3", n)
	}
	if n := w.Objects["Model"]; n != 4 {
		t.Errorf("%d models of 4", n)
	}
	for _, l := range options("http://127.0.0.1:1/x") {
		if l.objects != "" {
			worldOf(t, l.objects)
		}
	}
}

// Each change of Envoy's configuration changes the one part that it should, and fails if that part
// does not exist.
func TestChangesOfEnvoy(t *testing.T) {
	text, err := os.ReadFile("../../envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	plain, err := adapt.Config(text, adapt.Addresses{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range append(options("http://127.0.0.1:1/x"), removals()...) {
		if l.change == nil {
			continue
		}
		changed, err := adapt.Config(text, adapt.Addresses{}, l.change)
		if err != nil || bytes.Equal(changed, plain) || !json.Valid(changed) {
			t.Errorf("%s: %v; the configuration is the same: %v", l.name, err, bytes.Equal(changed, plain))
		}
		if err := l.change(map[string]any{}); err == nil {
			t.Errorf("%s: an empty configuration is changed", l.name)
		}
	}
	disabled := func(config []byte) int { return bytes.Count(config, []byte(`"disabled":true`)) }
	logs := func(config []byte) int { return bytes.Count(config, []byte("envoy.access_loggers.stdout")) }
	payloads, _ := adapt.Config(text, adapt.Addresses{}, withPayloads)
	quiet, _ := adapt.Config(text, adapt.Addresses{}, withoutLog)
	if disabled(payloads) != disabled(plain)-1 || logs(payloads) != logs(plain) || disabled(quiet) != disabled(plain) || logs(quiet) != 0 {
		t.Errorf("disabled parts: %d, %d with payloads, %d without the log; logs: %d, %d, %d", disabled(plain), disabled(payloads),
			disabled(quiet), logs(plain), logs(payloads), logs(quiet))
	}
}

// Prices compare the variants with the first one in the same round.
func TestSwitchTable(t *testing.T) {
	all := make(results)
	for _, busy := range []float64{1, 2, 3} {
		all.add("1KB-32", "default", sample{envoy: 100 * busy * micro, server: 100 * busy * micro})
		all.add("1KB-32", "explain", sample{envoy: 120 * busy * micro, server: 100 * busy * micro})
	}
	var b bytes.Buffer
	all.switchTable(&b, "price of a switch", switchCells[:1], []variant{{name: "default", title: "default"}, {name: "explain", title: "--explain-picks"}})
	got := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"price of a switch: 1 KB, 32 clients both / default Envoy, µs", "default 1.00 200 (100–300) ",
		"--explain-picks 1.10 240 (120–360) 200 (100–300) 440 (220–660)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q in\n%s", want, b.String())
		}
	}
}

// What a process uses when idle, in the time of one request, is not part of a decision's cost.
func TestDecisionIsWithoutIdle(t *testing.T) {
	got := decisionOf(ext.Result{CPU: 150, P50: 200, P99: 900, PerSecond: 1000}, 0.05)
	all := []float64{got.cpu, got.p50, got.p99, got.rate, got.idleCores}
	want := []float64{100 * micro, 200 * micro, 900 * micro, 1000, 0.05}
	if !slices.EqualFunc(all, want, func(a, b float64) bool { return a-b < 1e-12 && b-a < 1e-12 }) {
		t.Errorf("%v, want %v", all, want)
	}
}
