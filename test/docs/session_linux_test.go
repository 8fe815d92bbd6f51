package docs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// session is a bash in its own network namespace. A copy of the repository is mounted at the
// repository's path.
type session struct {
	t       *testing.T
	command *exec.Cmd
	input   io.Writer
	output  *output
}

// output is what a session has printed since the start of the current block.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // receives a value after each write
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.more <- struct{}{}:
	default:
	}
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Reset()
}

// setUp is a script that prepares the namespaces of a session and enters the copy of the
// repository.
const setUp = `set -e
ip link set lo up
mkdir -p "$CLONE/.cache"
mount --bind "$ROOT/.cache" "$CLONE/.cache"
mount --rbind "$CLONE" "$ROOT"
cd "$ROOT"
set +e
trap : INT # the commands are interrupted, and not the shell
trap 'failed=$?' ERR
`

// needs skips the test if this system cannot run sessions: they need root and some tools.
func needs(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a network namespace of its own needs root")
	}
	for _, tool := range []string{"ip", "mount", "make", "bash", "git"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the session needs %s: %v", tool, err)
		}
	}
}

// start starts a session in clone, a copy of the repository at root. The session ends with the
// test.
func start(t *testing.T, root, clone string) *session {
	t.Helper()
	var err error
	s := &session{t: t, output: &output{more: make(chan struct{}, 1)}}
	s.command = exec.Command("bash")
	// The session must not get the flags of make test.
	s.command.Env = append(os.Environ(), "ROOT="+root, "CLONE="+clone, "MAKEFLAGS=", "MFLAGS=", "MAKELEVEL=")
	s.command.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true, Pdeathsig: syscall.SIGKILL,
		Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
	}
	s.command.Stdout, s.command.Stderr, s.command.WaitDelay = s.output, s.output, time.Second
	if s.input, err = s.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := s.command.Start(); err != nil {
		t.Skipf("this system allows no network namespace: %v", err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-s.command.Process.Pid, syscall.SIGKILL)
		_ = s.command.Wait()
	})
	if err := s.run(block{commands: setUp}, time.Minute); err != nil {
		t.Skipf("this system allows no session: %v", err)
	}
	return s
}

// copied copies the files of the working tree and builds the programs into bin of the copy.
func copied(t *testing.T, root string) (dir string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		t.Skipf("this is no clone of the repository: %v", err)
	}
	dir = t.TempDir()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		from, to := filepath.Join(root, name), filepath.Join(dir, name)
		info, err := os.Stat(from)
		if os.IsNotExist(err) {
			continue // the file was deleted, but git still lists it
		}
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			continue
		}
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, text, info.Mode().Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "bin")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "./headgate", "./bench")
	build.Dir = root // lets go use the build cache of the repository
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
	}
	for _, link := range []string{"extproc", "control"} {
		if err := os.Symlink("headgate", filepath.Join(bin, link)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// run runs a block. It returns an error if a command fails or the output is not as expected.
func (s *session) run(b block, limit time.Duration) error {
	s.output.reset()
	if b.endless && b.prints == "" {
		return fmt.Errorf("line %d: commands that run until Ctrl-C need a block that shows what they print", b.line)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	const end = "the block has ended with status "
	// With the braces, bash reads the whole block before it runs the first command.
	fmt.Fprintf(s.input, "failed=0; { %s\n} </dev/null; echo; echo \"%s$failed\"\n", strings.TrimSuffix(b.commands, "\n"), end)
	if b.endless {
		if err := s.await(ctx, func(text string) bool {
			return strings.Contains(text, "\n"+end) || missing(b.prints, text) == ""
		}); err != nil {
			return fmt.Errorf("line %d: %w", b.line, err)
		}
		if !strings.Contains(s.output.String(), "\n"+end) { // else the signal would arrive in the next block
			interrupting, stop := context.WithCancel(ctx)
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				s.interrupt(interrupting)
			}()
			defer func() {
				stop()
				<-stopped
			}()
		}
	}
	if err := s.await(ctx, func(text string) bool { return strings.Contains(text, "\n"+end) }); err != nil {
		return fmt.Errorf("line %d: %w", b.line, err)
	}
	text, status, _ := strings.Cut(s.output.String(), "\n"+end)
	if line := missing(b.prints, text); line != "" {
		return fmt.Errorf("line %d: this line is not printed:\n%s\nprinted is:\n%s", b.line, line, text)
	}
	if status = strings.TrimSpace(status); status != "0" && !b.endless {
		return fmt.Errorf("line %d: a command ends with status %s:\n%s", b.line, status, text)
	}
	return nil
}

// interrupt sends SIGINT repeatedly until the context ends, because a single signal may arrive
// between two commands of a loop.
func (s *session) interrupt(ctx context.Context) {
	for {
		_ = syscall.Kill(-s.command.Process.Pid, syscall.SIGINT)
		select {
		case <-time.After(3 * time.Second):
		case <-ctx.Done():
			return
		}
	}
}

// await waits until ok returns true for the text that the session has printed.
func (s *session) await(ctx context.Context, ok func(text string) bool) error {
	for !ok(s.output.String()) {
		select {
		case <-s.output.more:
		case <-ctx.Done():
			return fmt.Errorf("the commands take too long; printed is:\n%s", s.output)
		}
	}
	return nil
}
