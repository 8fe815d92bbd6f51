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

// quickstart runs "headgate run" at its own loopback addresses, with the objects that the
// repository ships.
type quickstart struct {
	t       *testing.T
	network string
	dir     string
	args    []string
	folder  string // where it runs; empty for that of the test
	command *exec.Cmd
	lines   chan string // lines of the output; closed when the output ends
	done    chan error
	faults  bytes.Buffer
}

func newQuickstart(t *testing.T) *quickstart {
	t.Helper()
	q := newQuickstartOf(t, "objects")
	q.args = append(q.args, "--envoy-config", root+"/envoy.yaml", "--listen", q.network+"1:8080")
	return q
}

// newQuickstartOf returns a quickstart with a copy of the objects in another folder.
func newQuickstartOf(t *testing.T, folder string) *quickstart {
	t.Helper()
	q := &quickstart{t: t, network: network(), dir: t.TempDir()}
	shipped := root + "/headgate/run/" + folder
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
		"run", "--objects", q.dir, "--run", filepath.Join(q.dir, "run"), "--cache", cache, "--admin", q.network + "1:9901",
		"--metrics", q.network + "1:9090", "--control-metrics", q.network + "1:9091",
	}
	return q
}

func (q *quickstart) start() {
	q.t.Helper()
	q.command = exec.Command(programs(q.t).Headgate, q.args...)
	q.command.Dir, q.command.Stderr = q.folder, &q.faults
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

// until waits for an output line that matches pattern, and returns the output up to that line.
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

// pastes checks that the three requests printed in said can be pasted into a shell.
func (q *quickstart) pastes(said string) {
	q.t.Helper()
	curls := regexp.MustCompile(`(?ms)^  curl .*?(\n$|\}'$)`).FindAllString(said, -1)
	if len(curls) != 3 {
		q.t.Fatalf("%d lines to paste in:\n%s", len(curls), said)
	}
	for i, want := range []string{`"object":"list"`, `"object":"chat.completion"`, "data: [DONE]"} {
		out, err := exec.Command("bash", "-c", "set -e; "+strings.TrimSpace(curls[i])+
			" --silent --show-error --max-time 30").CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			q.t.Errorf("%s: %v\n%s", curls[i], err, out)
		}
	}
}

// ended waits until the process ends and returns its error.
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

// nothingLeft checks that no process of the run is left and that none of its addresses is in use.
func (q *quickstart) nothingLeft() {
	q.t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		q.t.Fatal(err)
	}
	for _, path := range processes {
		text, _ := os.ReadFile(path) // fails if the process has ended
		if bytes.Contains(text, []byte(q.dir)) || bytes.Contains(text, []byte(q.network)) {
			q.t.Errorf("a process is left: %s", bytes.ReplaceAll(text, []byte{0}, []byte(" ")))
		}
	}
	if err := q.free(); err != nil {
		q.t.Error(err)
	}
}

// free returns an error if something still serves at an address of the quickstart.
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

func TestQuickstart(t *testing.T) {
	runs(t)
	q := newQuickstart(t)
	q.start()
	said := q.until("Ctrl-C stops everything")

	q.pastes(said)

	// The console prints one line per second, with requests, tokens and each engine's queue and
	// slots.
	line := q.until(`[1-9]\d* tok/s`)
	const engine = `engine-[1-4] +\d+\+\d+ +[●○]{4}`
	if !regexp.MustCompile(`\d\d:\d\d:\d\d +\d+ req/s +\d+ tok/s \| +\d+ queued +\d+ loads +\d+ evictions( \| ` + engine +
		`){4}`).MatchString(line) {
		t.Errorf("the line is %s", line)
	}

	// Ctrl-C ends the quickstart while a stream is open.
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

// headgate run needs no file of the repository. It serves on loopback, opens ModelMesh's ports
// where flags say, and leaves nothing in its folder.
func TestRunInAnEmptyFolder(t *testing.T) {
	runs(t)
	q := newQuickstart(t)
	q.folder = t.TempDir()
	objects := filepath.Join(t.TempDir(), "demo")
	if out, err := exec.Command(programs(t).Headgate, "init", objects).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := filepath.Glob(objects + "/objects/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("init wrote %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte("127.0.0."), []byte(q.network)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	found, err := filepath.Abs(cache)
	if err != nil {
		t.Fatal(err)
	}
	q.args = []string{
		"run", "--objects", objects + "/objects", "--cache", found, "--listen", q.network + "1:8080", "--admin", q.network + "1:9901",
		"--metrics", q.network + "1:9090", "--control-metrics", q.network + "1:9091",
	}
	q.start()
	said := q.until("Ctrl-C stops everything")
	q.pastes(said)
	for _, port := range []string{"8008", "8033"} {
		if conn, err := net.Dial("tcp", q.network+"1:"+port); err == nil {
			t.Errorf("port %s is open", port)
			_ = conn.Close()
		}
	}
	second := &quickstart{t: t, network: q.network, dir: q.dir, args: []string{"run"}, folder: q.folder}
	second.start()
	second.fails(fmt.Sprintf("headgate run already runs in .headgate, as process %d: stop it with Ctrl-C or kill %[1]d, or give this one a folder and ports of its own (--run, --listen, --admin, --metrics, --control-metrics)",
		q.command.Process.Pid))
	q.interrupt()
	if left, err := os.ReadDir(q.folder); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
	q.nothingLeft()

	q.args = append(q.args, "--modelmesh-rest", q.network+"1:8008", "--modelmesh-grpc", q.network+"1:8033")
	q.start()
	q.until("Ctrl-C stops everything")
	for _, port := range []string{"8008", "8033"} {
		conn, err := net.Dial("tcp", q.network+"1:"+port)
		if err != nil {
			t.Error(err)
			continue
		}
		_ = conn.Close()
	}
	q.interrupt()
}

func TestQuickstartThatIsKilledLeavesNoProcess(t *testing.T) {
	runs(t)
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
		// When pgrep no longer finds a killed process, its sockets may still be open.
		out, err := exec.Command("pgrep", "-f", q.dir).Output()
		return err != nil && len(out) == 0 && q.free() == nil
	})
	q.nothingLeft()
}

func TestPortInUseIsReported(t *testing.T) {
	runs(t)
	for taken, want := range map[string]string{
		"1:8080":  "the address %[1]s1:8080 is taken: stop what serves there, or choose another with --listen, such as --listen %[1]s1:8081",
		"1:9090":  "the address %[1]s1:9090 is taken: stop what serves there, or choose another with --metrics, such as --metrics %[1]s1:9091",
		"12:8000": "the address %[1]s12:8000 of a simulated engine is taken: stop what serves there, or choose another podIP in %[2]s",
	} {
		q := newQuickstart(t)
		l, err := net.Listen("tcp", q.network+taken)
		if err != nil {
			t.Fatal(err)
		}
		q.start()
		q.fails(fmt.Sprintf(want+"%.0[2]s", q.network, q.dir))
		_ = l.Close()
		q.nothingLeft()
	}
}

// fails checks that the quickstart ends with the one-line error want.
func (q *quickstart) fails(want string) {
	q.t.Helper()
	err := q.ended(30 * time.Second)
	if got := q.faults.String(); err == nil || got != "headgate run: "+want+"\n" {
		q.t.Errorf("%v, it says %q, want %q", err, got, want)
	}
}

// A second run in the same folder reports the first one and does not disturb it. After the first
// run has ended or crashed, the folder can be used again.
func TestSecondRunLeavesTheFirstAlone(t *testing.T) {
	runs(t)
	first := newQuickstart(t)
	first.start()
	first.until("Ctrl-C stops everything")
	second := &quickstart{t: t, network: first.network, dir: first.dir, args: first.args}
	second.start()
	second.fails(fmt.Sprintf("headgate run already runs in %s/run, as process %d: stop it with Ctrl-C or kill %[2]d, or give this one a folder and ports of its own (--run, --listen, --admin, --metrics, --control-metrics)",
		first.dir, first.command.Process.Pid))
	first.until(`\d\d:\d\d:\d\d .*engine-4 +0\+0 +[●○]{4}`) // the first run continues

	if err := first.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := first.ended(10 * time.Second); err == nil {
		t.Error("killed, and no error")
	}
	(&stack{t: t}).await("its addresses are free", func() bool { return first.free() == nil })
	third := &quickstart{t: t, network: first.network, dir: first.dir, args: first.args}
	third.start()
	third.until("Ctrl-C stops everything")
	third.interrupt()
}

// interrupt ends the quickstart as Ctrl-C does.
func (q *quickstart) interrupt() {
	q.t.Helper()
	if err := q.command.Process.Signal(os.Interrupt); err != nil {
		q.t.Fatal(err)
	}
	if err := q.ended(15 * time.Second); err != nil {
		q.t.Errorf("after Ctrl-C: %v\n%s", err, q.faults.String())
	}
}

// If a program fails to start, the quickstart prints one line that says why, and where the logs
// are.
func TestFailedProgramIsReportedInOneLine(t *testing.T) {
	runs(t)
	q := newQuickstart(t)
	q.args = append(q.args, "--extproc-flag=--nonsense")
	q.start()
	q.fails(fmt.Sprintf("extproc ended at its start: extproc: unknown flag: --nonsense; see extproc --help; its log is %s/run/extproc.log", q.dir))
	q.nothingLeft()
}

// The console shows edits that are made while it runs: endpoints that are added by address or by
// name, and edits that are rejected.
func TestConsoleShowsEdits(t *testing.T) {
	runs(t)
	q := newQuickstart(t)
	q.start()
	q.until("Ctrl-C stops everything")
	one := q.ownEngine(q.network+"21:8000", "llama-more")
	two := q.ownEngine("127.0.0.1:0", "llama-by-name")
	_, port, _ := net.SplitHostPort(two)
	list := "apiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: { name: rack, labels: { app: llama } }\nspec: { addresses: [\"" + one +
		"\", \"localhost:" + port +
		"\"] }\n"
	file := filepath.Join(q.dir, "rack.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(list)
	q.until(`objects read: .*rack\.yaml, 1 in it`)
	q.until(`engine-4 .*`)
	line := q.until(regexp.QuoteMeta(two) + ` +0\+0`)
	if !regexp.MustCompile(regexp.QuoteMeta(one)+` +0\+0`).MatchString(line) || !strings.Contains(line, "engine-1 ") {
		t.Errorf("with a list beside the pods it says %s", line)
	}

	write(strings.Replace(list, "addresses", "adresses", 1))
	q.until(`^\d\d:\d\d:\d\d objects refused; keeping the last valid ones of this file: .*rack\.yaml:4: EndpointList default/rack: unknown field "spec\.adresses"`)
	q.until(regexp.QuoteMeta(two) + ` .*files refused: 1$`)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	q.until(`objects removed: .*rack\.yaml`)
	if line := q.until(`req/s .*engine-4 +0\+0 +[●○]{4}$`); strings.Contains(line, "refused: ") {
		t.Errorf("without the list it says %s", line)
	}
	q.interrupt()
}

// ownEngine starts a simulated engine outside the quickstart and returns its address.
func (q *quickstart) ownEngine(address, model string) string {
	q.t.Helper()
	host, port, _ := net.SplitHostPort(address)
	engine := exec.Command(programs(q.t).Headgate, "engine", model, "--host", host, "--port", port)
	out, err := engine.StdoutPipe()
	if err != nil {
		q.t.Fatal(err)
	}
	if err := engine.Start(); err != nil {
		q.t.Fatal(err)
	}
	q.t.Cleanup(func() {
		_ = engine.Process.Kill()
		_ = engine.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		q.t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "serving on http://"))
}

// With the user's own servers, the quickstart runs only extproc and Envoy. The example that it
// prints names a model that the servers list.
func TestQuickstartWithOwnServers(t *testing.T) {
	runs(t)
	q := newQuickstart(t)
	late := q.network + "31:8000"
	two := q.ownEngine("127.0.0.1:0", "llama-by-name")
	_, port, _ := net.SplitHostPort(two)
	q.args = []string{
		"run", "--run", filepath.Join(q.dir, "run"), "--envoy-config", root + "/envoy.yaml", "--cache", cache,
		"--listen", q.network + "1:8080", "--admin", q.network + "1:9901", "--metrics", q.network + "1:9090",
		"--endpoints", "localhost:" + port + ",http://" + late + "/v1",
	}
	q.start()
	said := q.until("Ctrl-C stops everything")
	for _, want := range []string{
		"extproc and Envoy in front of localhost:" + port + ", " + late,
		`"model": "llama-by-name"`,
		late + "          it refuses connections: does it run",
	} {
		if !strings.Contains(strings.Join(strings.Fields(said), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	curls := regexp.MustCompile(`(?ms)^  curl .*?(\n$|\}'$)`).FindAllString(said, -1)
	if len(curls) != 2 {
		t.Fatalf("%d lines to paste in:\n%s", len(curls), said)
	}
	for i, want := range []string{`"id":"llama-by-name"`, `"object":"chat.completion"`} {
		out, err := exec.Command("bash", "-c", "set -e; "+strings.TrimSpace(curls[i])+
			" --silent --show-error --max-time 30").CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%s", curls[i], err, out)
		}
	}
	q.until(regexp.QuoteMeta(two) + ` +\d+\+\d+ .*` + regexp.QuoteMeta(late) + ` no answer|` + regexp.QuoteMeta(late) + ` no answer .*` +
		regexp.QuoteMeta(two) + ` +\d+\+\d+`)
	q.ownEngine(late, "llama-late")
	q.until(regexp.QuoteMeta(late) + ` +0\+0`)
	q.interrupt()
	q.noneOf("control", "--objects")
}

// noneOf checks that the logs of a run contain none of the words.
func (q *quickstart) noneOf(words ...string) {
	q.t.Helper()
	for _, word := range words {
		if _, err := os.Stat(filepath.Join(q.dir, "run", word+".log")); err == nil {
			q.t.Errorf("there is a log of %s", word)
		}
	}
}

// If no server answers yet, the quickstart prints what is wrong with each server. It prints the
// example when a server answers.
func TestOwnServersThatAreNotReadyYet(t *testing.T) {
	runs(t)
	q := newQuickstart(t)
	late := q.network + "31:8000"
	q.args = []string{
		"run", "--run", filepath.Join(q.dir, "run"), "--envoy-config", root + "/envoy.yaml", "--cache", cache,
		"--listen", q.network + "1:8080", "--admin", q.network + "1:9901", "--metrics", q.network + "1:9090", "--endpoints", late,
	}
	q.start()
	said := q.until("Ctrl-C stops everything")
	if !strings.Contains(said, "None of the servers lists a model:") || !strings.Contains(said, late) ||
		strings.Contains(said, "chat/completions") {
		t.Errorf("it says\n%s", said)
	}
	q.until(`- req/s +- tok/s \| ` + regexp.QuoteMeta(late) + ` no answer`)
	q.ownEngine(late, "llama-late")
	q.until(`"model": "llama-late"`)
	q.until(regexp.QuoteMeta(late) + ` +0\+0`)
	q.interrupt()
}
