package run

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
)

func TestDescriptionsOfObjects(t *testing.T) {
	const at = `{"time":"2026-01-02T12:00:00Z","level":`
	for record, want := range map[string]string{
		at + `"ERROR","msg":"objects refused; keeping the last valid ones of this file",` +
			`"fault":"objects/a.yaml:3: LLMRoute default/x: spec.backendRefs:\n Required value"}`: "" +
			"objects refused; keeping the last valid ones of this file: " +
			"objects/a.yaml:3: LLMRoute default/x: spec.backendRefs:  Required value",
		at + `"INFO","msg":"objects read","file":"objects/a.yaml","objects":4}`: "objects read: objects/a.yaml, 4 in it",
		at + `"WARN","msg":"objects have a problem","problem":"EndpointList default/a: nothing uses it"}`: "" +
			"objects have a problem: EndpointList default/a: nothing uses it",
		at + `"WARN","msg":"endpoint is out","endpoint":"a:1"}`: "",
		`extproc: not a record`:                                 "",
	} {
		got := notice([]byte(record + "\n"))
		if want != "" {
			want = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC).Local().Format("15:04:05") + " " + want
		}
		if got != want {
			t.Errorf("%s\nis told as %q, want %q", record, got, want)
		}
	}
}

// If extproc logs a rejected edit, the console prints it once, with file, line and reason. If a log
// record is incomplete, the console waits for the rest.
func TestRejectedEditIsReported(t *testing.T) {
	folder := t.TempDir()
	file, logFile := filepath.Join(folder, "a.yaml"), filepath.Join(t.TempDir(), "extproc.log")
	const good = "apiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: a}\nspec: {backendRefs: [{name: p}]}\n"
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(file, good)
	write(logFile, `{"time":"2026-01-02T12:00:00Z","msg":"objects read","file":"of an earlier run"}`+"\n")
	n := newNotices(logFile)
	log, err := os.OpenFile(logFile, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	published := make(chan bool, 16)
	go func() {
		done <- dir.New(folder, kinds.All(), slog.New(slog.NewJSONHandler(log, nil)), nil).Run(ctx, func(objects.Set) { published <- true })
	}()
	<-published
	var told []string
	until := func(pattern string) {
		t.Helper()
		limit := time.After(10 * time.Second)
		for match := regexp.MustCompile(pattern); len(told) == 0 ||
			!match.MatchString(told[len(told)-1]); told = append(told, n.next()...) {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-limit:
				t.Fatalf("%q is not told; what is told is\n%s", pattern, strings.Join(told, "\n"))
			}
		}
	}
	until(`objects read: .*a\.yaml, 1 in it$`)
	write(file, strings.Replace(good, "backendRefs: [{name: p}]", "backend: p", 1))
	until(`^\d\d:\d\d:\d\d objects refused; keeping the last valid ones of this file: .*a\.yaml:4: LLMRoute default/a: unknown field "spec\.backend"; known fields are `)
	write(file, good)
	until(`objects read: .*a\.yaml, 1 in it$`)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(told) != 3 {
		t.Errorf("%d lines are told, want 3:\n%s", len(told), strings.Join(told, "\n"))
	}

	half := `{"time":"2026-01-02T12:00:00Z","msg":"objects have a problem","problem":"later"}`
	if _, err := log.WriteString(half[:20]); err != nil {
		t.Fatal(err)
	}
	if lines := n.next(); len(lines) > 0 {
		t.Errorf("of half a record is told %q", lines)
	}
	if _, err := log.WriteString(half[20:] + "\n"); err != nil {
		t.Fatal(err)
	}
	if lines := n.next(); len(lines) != 1 || !strings.HasSuffix(lines[0], "objects have a problem: later") {
		t.Errorf("of the whole record is told %q", lines)
	}
}

// A pod with one endpoint is shown by its name, any other endpoint by its address.
func TestNamesOfEndpoints(t *testing.T) {
	folder := t.TempDir()
	text := `apiVersion: v1
kind: List
items:
  - {apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: one}, spec: {selector: {matchLabels: {app: one}}, targetPorts: [{number: 1}]}}
  - {apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: two}, spec: {selector: {matchLabels: {app: two}}, targetPorts: [{number: 1}, {number: 2}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: a, labels: {app: one}}, status: {podIP: 127.0.0.2}}
  - {apiVersion: v1, kind: Pod, metadata: {name: b, labels: {app: two}}, status: {podIP: 127.0.0.3}}
  - {apiVersion: inference.x-k8s.io/v1alpha1, kind: EndpointList, metadata: {name: rack, labels: {app: one}}, spec: {addresses: ["127.0.0.4:1"]}}
`
	if err := os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	w := watch{rig: &rig.Rig{Config: rig.Config{Objects: folder}}}
	w.name([]endpoint{{address: "127.0.0.2:1"}, {address: "127.0.0.3:1"}, {address: "127.0.0.3:2"}, {address: "127.0.0.4:1"}})
	want := map[string]string{"127.0.0.2:1": "a", "127.0.0.3:1": "127.0.0.3:1", "127.0.0.3:2": "127.0.0.3:2", "127.0.0.4:1": "127.0.0.4:1"}
	if !maps.Equal(w.names, want) {
		t.Errorf("they are called %v, want %v", w.names, want)
	}
}
