package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// quickstart runs the program on a network of its own, with the objects that the repository ships.
type quickstart struct {
	t       *testing.T
	network string
	dir     string
	args    []string
	command *exec.Cmd
	lines   chan string // of its output; closed at its end
	done    chan error
	faults  bytes.Buffer
}

func newQuickstart(t *testing.T) *quickstart {
	t.Helper()
	q := &quickstart{t: t, network: network(), dir: t.TempDir()}
	shipped := root + "/bench/quickstart/objects"
	files, err := os.ReadDir(shipped)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(shipped, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		moved := strings.ReplaceAll(string(text), "127.0.0.", q.network)
		if err := os.WriteFile(filepath.Join(q.dir, f.Name()), []byte(moved), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	q.args = []string{
		"quickstart", "--objects", q.dir, "--run", filepath.Join(q.dir, "run"), "--envoy-config", root + "/envoy.yaml", "--cache", cache,
		"--listen", q.network + "1:8080", "--admin", q.network + "1:9901", "--metrics", q.network + "1:9090", "--control-metrics", q.network + "1:9091",
	}
	return q
}

func (q *quickstart) start() {
	q.t.Helper()
	q.command = exec.Command(programs.Bench, q.args...)
	q.command.Stderr = &q.faults
	out, err := q.command.StdoutPipe()
	if err != nil {
		q.t.Fatal(err)
	}
	if err := q.command.Start(); err != nil {
		q.t.Fatal(err)
	}
	q.lines, q.done = make(chan string, 10_000), make(chan error, 1)
	go func() {
		for scan := bufio.NewScanner(out); scan.Scan(); {
			q.lines <- scan.Text()
		}
		close(q.lines)
		q.done <- q.command.Wait()
	}()
	q.t.Cleanup(func() { _ = q.command.Process.Kill() })
}

// until returns the output up to the first line that matches.
func (q *quickstart) until(pattern string) string {
	q.t.Helper()
	var seen strings.Builder
	match := regexp.MustCompile(pattern)
	for limit := time.After(time.Minute); ; {
		select {
		case line, ok := <-q.lines:
			if !ok {
				q.t.Fatalf("the output ended without %q:\n%s%s", pattern, seen.String(), q.faults.String())
			}
			seen.WriteString(line + "\n")
			if match.MatchString(line) {
				return seen.String()
			}
		case <-limit:
			q.t.Fatalf("no line %q came:\n%s", pattern, seen.String())
		}
	}
}

// ended waits for the process to end.
func (q *quickstart) ended(limit time.Duration) error {
	q.t.Helper()
	select {
	case err := <-q.done:
		return err
	case <-time.After(limit):
		q.t.Fatalf("it has not ended after %v", limit)
		return nil
	}
}

// nothingLeft checks that no process of the run lives and no address is taken.
func (q *quickstart) nothingLeft() {
	q.t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		q.t.Fatal(err)
	}
	for _, path := range processes {
		text, _ := os.ReadFile(path) // it may be gone meanwhile
		if bytes.Contains(text, []byte(q.dir)) || bytes.Contains(text, []byte(q.network)) {
			q.t.Errorf("a process is left: %s", bytes.ReplaceAll(text, []byte{0}, []byte(" ")))
		}
	}
	if err := q.free(); err != nil {
		q.t.Error(err)
	}
}

// free is an error if something serves at an address of the quickstart.
func (q *quickstart) free() error {
	for _, address := range []string{"1:8080", "1:9901", "1:9090", "1:9091", "11:8000", "12:8000", "13:8000", "14:8000"} {
		l, err := net.Listen("tcp", q.network+address)
		if err != nil {
			return err
		}
		_ = l.Close()
	}
	return nil
}

func TestTheQuickstart(t *testing.T) {
	t.Parallel()
	q := newQuickstart(t)
	q.start()
	said := q.until("Ctrl-C stops everything")

	// What it prints can be pasted.
	curls := regexp.MustCompile(`(?ms)^  curl .*?(\n$|\}'$)`).FindAllString(said, -1)
	if len(curls) != 3 {
		t.Fatalf("%d lines to paste in:\n%s", len(curls), said)
	}
	for i, want := range []string{`"object":"list"`, `"object":"chat.completion"`, "data: [DONE]"} {
		out, err := exec.Command("bash", "-c", "set -e; "+strings.TrimSpace(curls[i])+" --silent --show-error --max-time 30").CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%s", curls[i], err, out)
		}
	}

	// A line a second, with the requests, the tokens and each engine's queue and slots.
	line := q.until(`[1-9]\d* tok/s`)
	const engine = `engine-[1-4] +\d+\+\d+ +[●○]{4}`
	if !regexp.MustCompile(`\d\d:\d\d:\d\d +\d+ req/s +\d+ tok/s \| +\d+ held +\d+ loads +\d+ evictions( \| ` + engine + `){4}`).MatchString(line) {
		t.Errorf("the line is %s", line)
	}

	// Ctrl-C, with a stream open.
	response, err := http.Post("http://"+q.network+"1:8080/v1/completions", "application/json",
		strings.NewReader(`{"model":"sql","prompt":"x","max_tokens":4000,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := response.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pressed := time.Now()
	if err := q.command.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := q.ended(10 * time.Second); err != nil {
		t.Errorf("after Ctrl-C: %v\n%s", err, q.faults.String())
	}
	t.Logf("it ended %v after Ctrl-C", time.Since(pressed).Round(time.Millisecond))
	_, _ = io.Copy(io.Discard, response.Body)
	q.nothingLeft()
}

func TestAQuickstartThatIsKilledLeavesNoProcess(t *testing.T) {
	t.Parallel()
	q := newQuickstart(t)
	q.start()
	q.until("Ctrl-C stops everything")
	if err := q.command.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := q.ended(10 * time.Second); err == nil {
		t.Error("killed, and no error")
	}
	s := &stack{t: t}
	s.await("its processes are gone", func() bool {
		// A process that was killed loses its command line before its sockets.
		out, err := exec.Command("pgrep", "-f", q.dir).Output()
		return err != nil && len(out) == 0 && q.free() == nil
	})
	q.nothingLeft()
}

func TestATakenPortIsNamed(t *testing.T) {
	t.Parallel()
	for _, taken := range []string{"1:8080", "1:9090", "12:8000"} {
		q := newQuickstart(t)
		l, err := net.Listen("tcp", q.network+taken)
		if err != nil {
			t.Fatal(err)
		}
		q.start()
		err = q.ended(30 * time.Second)
		want := fmt.Sprintf("bench: the address %s%s is taken: stop what serves there, or choose another\n", q.network, taken)
		if err == nil || q.faults.String() != want {
			t.Errorf("%v, it says %q, want %q", err, q.faults.String(), want)
		}
		_ = l.Close()
		q.nothingLeft()
	}
}
