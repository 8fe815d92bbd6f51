// Package process runs programs beside this one: what they print goes to files, their end is known, and they end with
// their starter, however that ends.
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

// Process is a program that was started.
type Process struct {
	Name string
	// Log is the file with what it prints.
	Log string

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Starter starts processes from one thread that lives until it is closed. A process that dies with its parent dies with
// the parent's thread (PR_SET_PDEATHSIG), and Envoy's wheel is made so.
type Starter chan func()

// NewStarter returns one that whoever needs no process any more closes.
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

// Start runs a command whose output goes to the file NAME.log in dir. What the process has already printed in an earlier
// life stays.
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

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID is the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends the process a signal. One that has ended gets none.
func (p *Process) Signal(s os.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(fmt.Sprintf("signal %s: %v", p.Name, err)) // it is our own child
	}
}

// Kill ends the process at once and waits for its end.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// KillGroup ends the process and what it has started at once, such as the workers of an engine, and waits for its own end.
func (p *Process) KillGroup() {
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // who has ended needs no end
	<-p.done
}

// Stop asks the process to end, and kills it if that takes longer than patience.
func (p *Process) Stop(patience time.Duration) {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.Kill()
	}
}

// AwaitOK waits until a URL answers 200. It gives up when the process ends or ctx does, and then says what the process
// printed last.
func (p *Process) AwaitOK(ctx context.Context, url string) error {
	client := http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	return p.AwaitAnswer(ctx, &client, url)
}

// AwaitAnswer is AwaitOK with a client of the caller's, for a server that wants TLS or a name.
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

// NotReady is a process that did not come to answer.
type NotReady struct {
	*Process
	// Fault is what it did instead.
	Fault string
}

// Error has the end of what the process printed.
func (n *NotReady) Error() string { return n.Name + " " + n.Fault + ":\n" + n.LastWords() }

// Brief is the error in one line: the last one that the process printed, and where the others are.
func (n *NotReady) Brief() string {
	words := n.LastWords()
	return fmt.Sprintf("%s %s: %s; its log is %s", n.Name, n.Fault, words[strings.LastIndexByte(words, '\n')+1:], n.Log)
}

// LastWords is the end of what the process printed.
func (p *Process) LastWords() string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-10):], []byte("\n")))
}
