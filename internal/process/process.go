// Package process runs child processes and writes their output to log files. The processes end when
// the process that started them ends.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is a child process.
type Process struct {
	Name string
	// Log is the path of the file with the output of the process.
	Log string

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Starter starts processes from one OS thread, which lives until the Starter is closed. A process
// with PR_SET_PDEATHSIG is killed when the thread that started it ends. This package sets it, and
// so does Envoy's wheel.
type Starter chan func()

// NewStarter returns a Starter. The caller must close it when all its processes may end.
func NewStarter() Starter {
	s := make(Starter)
	go func() {
		runtime.LockOSThread()
		for start := range s {
			start()
		}
	}()
	return s
}

// Start starts a command. It appends the command's output to NAME.log in dir.
func (s Starter) Start(name, dir string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(dir, name+".log"), cmd: cmd, done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = processAttributes()
	started := make(chan error)
	s <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process if it still runs.
func (p *Process) Signal(s os.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(fmt.Sprintf("signal %s: %v", p.Name, err)) // cannot happen for a child process
	}
}

// Kill kills the process and waits until it has ended.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// KillGroup kills the process and its children, such as the workers of an engine. It waits until
// the process itself has ended.
func (p *Process) KillGroup() {
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // an error means that no process of the group is left
	<-p.done
}

// Stop sends SIGTERM. It kills the process if it has not ended after the duration patience.
func (p *Process) Stop(patience time.Duration) {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.Kill()
	}
}

// AwaitOK waits until a URL answers 200. If the process or ctx ends first, the error contains the
// last lines of the log.
func (p *Process) AwaitOK(ctx context.Context, url string) error {
	client := http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	return p.AwaitAnswer(ctx, &client, url)
}

// AwaitAnswer is AwaitOK with a given HTTP client, for example for TLS.
func (p *Process) AwaitAnswer(ctx context.Context, client *http.Client, url string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		response, err := client.Get(url)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.done:
			return &NotReady{p, "ended at its start"}
		case <-ctx.Done():
			return &NotReady{p, fmt.Sprintf("did not answer %s in time", url)}
		case <-tick.C:
		}
	}
}

// NotReady is the error if a process does not become ready.
type NotReady struct {
	*Process
	// Fault tells what happened instead.
	Fault string
}

// Error returns the fault and the last lines of the log.
func (n *NotReady) Error() string { return n.Name + " " + n.Fault + ":\n" + n.LastWords() }

// Brief returns one line with the fault, the last line of the log, and the path of the log.
func (n *NotReady) Brief() string {
	words := n.LastWords()
	return fmt.Sprintf("%s %s: %s; its log is %s", n.Name, n.Fault, words[strings.LastIndexByte(words, '\n')+1:], n.Log)
}

// LastWords returns the last lines of the log.
func (p *Process) LastWords() string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-10):], []byte("\n")))
}
