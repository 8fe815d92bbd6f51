package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/headgate/envoy/supervise"
)

// Intervals at which the supervisor asks Envoys.
const (
	readyInterval = 50 * time.Millisecond
	loadInterval  = 250 * time.Millisecond
)

// checkTimeout limits how long a binary may take to check the configuration.
const checkTimeout = 30 * time.Second

// supervisor runs Envoys: one that serves, and others that start or complete their responses. It
// executes the actions of a [supervise.Machine].
type supervisor struct {
	dir         string // folder of configurations and sockets
	relay       string // folder of the relay's sockets; empty if there are none
	concurrency int
	limits      supervise.Limits
	flags       []string // more flags for Envoy
	// find returns the path of the binary, and render the configuration. The first start and each
	// reload call them, since an upgrade may have changed both.
	find           func(context.Context) (string, error)
	render         func(context.Context) ([]byte, error)
	log            *slog.Logger
	stdout, stderr io.Writer

	current atomic.Pointer[process] // nil if no Envoy serves; the admin interface reads it

	// The rest belongs to the goroutine of run. Others send functions to events, which run there.
	machine *supervise.Machine
	events  chan func() supervise.Event
	starter chan func()   // runs on an OS thread that lives as long as the supervisor
	over    chan struct{} // closed when run returns
	envoys  map[int]*process
	checked checked
}

// checked is the result of the last check, for the next launch.
type checked struct {
	binary, version string
	config          []byte
}

// process is a running Envoy.
type process struct {
	supervise.Launch
	cmd    *exec.Cmd
	admin  *admin
	socket string // path of the admin interface
	done   chan struct{}
	// letter is a socket that replaces the socket of a process that has exited: see bury.
	letter net.PacketConn
	hot    bool // hot restarts are possible
}

// run runs Envoys until ctx ends and all responses are complete. A signal on reload starts the next
// Envoy. A signal on hurry ends all Envoys at once.
func (s *supervisor) run(ctx context.Context, reload, hurry <-chan os.Signal) error {
	s.machine = supervise.New(s.limits)
	s.events = make(chan func() supervise.Event)
	s.envoys = make(map[int]*process)
	s.starter, s.over = make(chan func()), make(chan struct{})
	defer close(s.starter)
	defer close(s.over)
	go func() {
		runtime.LockOSThread() // Envoy's wheel ends Envoy with the thread that started it
		for start := range s.starter {
			start()
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := ctx.Done()
	for event := supervise.Event(supervise.Start{}); ; {
		for _, a := range s.machine.Step(time.Now(), event) {
			if end, ok := a.(supervise.End); ok {
				return end.Err
			}
			s.do(a)
		}
		timer.Stop()
		if next := s.machine.Next(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case happened := <-s.events:
			event = happened()
		case <-reload:
			event = supervise.Reload{}
		case <-stop:
			stop, event = nil, supervise.Stop{}
		case <-hurry:
			event = supervise.Hurry{}
		case <-timer.C:
			event = supervise.Tick{}
		}
	}
}

func (s *supervisor) do(a supervise.Action) {
	switch a := a.(type) {
	case supervise.Check:
		go func() {
			c, err := s.check()
			s.post(func() supervise.Event {
				s.checked = c
				return supervise.Checked{Version: c.version, Err: err}
			})
		}()
	case supervise.Launch:
		if err := s.launch(a); err != nil {
			go s.send(supervise.Exited{ID: a.ID, Status: err.Error()})
		}
	case supervise.Adopt: // the Envoy may have exited, and the event of this comes later
		s.current.Store(s.envoys[a.ID])
	case supervise.Watch:
		if p := s.envoys[a.ID]; p != nil {
			go s.watch(p)
		}
	case supervise.Drain:
		if p := s.envoys[a.ID]; p != nil {
			go s.drain(p)
		}
	case supervise.Terminate:
		s.signal(a.ID, syscall.SIGTERM)
	case supervise.Kill:
		s.signal(a.ID, syscall.SIGKILL)
	case supervise.Note:
		level := [...]slog.Level{supervise.Info: slog.LevelInfo, supervise.Warn: slog.LevelWarn, supervise.Error: slog.LevelError}[a.Level]
		s.log.Log(context.Background(), level, a.Text, a.Args...) //nolint:sloglint // the machine's texts are static
	}
}

func (s *supervisor) send(e supervise.Event) { s.post(func() supervise.Event { return e }) }

// post makes run call a function and handle the event that it returns.
func (s *supervisor) post(happened func() supervise.Event) {
	select {
	case s.events <- happened:
	case <-s.over:
	}
}

// check finds the binary and the configuration, and makes the binary validate the configuration.
func (s *supervisor) check() (c checked, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	if c.binary, err = s.find(ctx); err != nil {
		return c, err
	}
	version, err := exec.CommandContext(ctx, c.binary, "--hot-restart-version").CombinedOutput() // Envoy prints it to stderr
	if err != nil {
		return c, fmt.Errorf("%s --hot-restart-version: %s", c.binary, lastLine(version, err))
	}
	if c.version = lastLine(version, err); c.version == "disabled" {
		c.version = ""
	}
	if c.config, err = s.render(ctx); err != nil {
		return c, err
	}
	file := filepath.Join(s.dir, "check.json")
	if err := replaceFile(file, c.config); err != nil {
		return c, err
	}
	out, err := exec.CommandContext(ctx, c.binary, "--mode", "validate", "--disable-hot-restart", "--log-level", "error", "--config-path", file).
		CombinedOutput()
	if err != nil {
		return c, fmt.Errorf("%s rejects the configuration: %s", c.binary, lastLine(out, err))
	}
	return c, os.Remove(file)
}

// lastLine returns the last line of an output, or the error if it is empty.
func lastLine(out []byte, err error) string {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	if last := lines[len(lines)-1]; len(last) > 0 || err == nil {
		return string(last)
	}
	return err.Error()
}

func (s *supervisor) adminSocket(id int) string {
	return filepath.Join(s.dir, fmt.Sprintf("admin-%d.sock", id))
}

func (s *supervisor) baseFile(generation int) string {
	return filepath.Join(s.dir, fmt.Sprintf("base-%d", generation))
}

func (s *supervisor) restartSockets(generation int) string {
	return filepath.Join(s.dir, fmt.Sprintf("restart-%d", generation))
}

// backName returns the name of the socket for extproc's relay. The Envoys of a generation share
// their listeners.
func backName(generation int) string {
	if generation == 1 {
		return wire.BackSocket
	}
	return fmt.Sprintf("back-%d.sock", generation)
}

// launch starts an Envoy.
func (s *supervisor) launch(l supervise.Launch) error {
	p := &process{Launch: l, socket: s.adminSocket(l.ID), done: make(chan struct{}), hot: s.checked.version != ""}
	config, err := s.addressed(p)
	if err != nil {
		return err
	}
	file := filepath.Join(s.dir, fmt.Sprintf("envoy-%d.json", l.ID))
	if err := replaceFile(file, config); err != nil {
		return err
	}
	args := []string{
		"--config-path", file, "--concurrency", strconv.Itoa(s.concurrency), "--drain-strategy", "immediate",
		"--drain-time-s", seconds(s.limits.Drain),
		"--parent-shutdown-time-s", seconds(years), // the supervisor ends the parent
	}
	switch {
	case !p.hot:
		args = append(args, "--disable-hot-restart")
	case l.Epoch == 0:
		args = append(args, "--use-dynamic-base-id", "--base-id-path", s.baseFile(l.Generation), "--socket-path", s.restartSockets(l.Generation))
	default:
		base, err := s.base(l.Generation)
		if err != nil {
			return err
		}
		// An Envoy that asks its parent for statistics aborts when the parent ends.
		args = append(args, "--base-id", base, "--restart-epoch", strconv.Itoa(l.Epoch), "--socket-path", s.restartSockets(l.Generation),
			"--skip-hot-restart-parent-stats")
		s.exhume(l)
	}
	p.cmd = exec.Command(s.checked.binary, append(args, s.flags...)...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = s.stdout, s.stderr, attributes()
	started := make(chan error)
	s.starter <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		return err
	}
	p.admin = newAdmin(p.socket)
	s.envoys[l.ID] = p
	go s.await(p)
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
		s.post(func() supervise.Event {
			s.bury(p)
			return supervise.Exited{ID: p.ID, Status: p.cmd.ProcessState.String()}
		})
	}()
	return nil
}

// addressed returns the checked configuration, with the sockets of this Envoy.
func (s *supervisor) addressed(p *process) ([]byte, error) {
	config := s.checked.config
	for _, r := range []struct {
		old, by string
		needed  bool
	}{
		{filepath.Join(s.dir, adminName), p.socket, true},
		{filepath.Join(s.relay, wire.BackSocket), filepath.Join(s.relay, backName(p.Generation)), s.relay != ""},
		{wire.BackSocket, backName(p.Generation), false}, // a user's own configuration need not contain it
	} {
		old, err := json.Marshal(r.old) // escaped as in the configuration
		if err != nil {
			return nil, err
		}
		by, err := json.Marshal(r.by)
		if err != nil {
			return nil, err
		}
		if r.needed && !bytes.Contains(config, old) {
			return nil, fmt.Errorf("the configuration does not contain the socket %s", r.old)
		}
		config = bytes.ReplaceAll(config, old, by)
	}
	return config, nil
}

// rejected returns how many updates of certificates and keys the current Envoy has rejected.
func (s *supervisor) rejected() int {
	p := s.current.Load()
	if p == nil {
		return 0
	}
	a := newAdmin(p.socket) // not p.admin, which the supervisor uses
	defer a.close()
	return a.rejected(context.Background())
}

// years is longer than an Envoy runs.
const years = 20 * 365 * 24 * time.Hour

func seconds(d time.Duration) string { return strconv.Itoa(int((d + time.Second - 1) / time.Second)) }

// base returns the base id of a generation, which its first Envoy chose.
func (s *supervisor) base(generation int) (string, error) {
	text, err := os.ReadFile(s.baseFile(generation))
	return strings.TrimSpace(string(text)), err
}

// await reports when an Envoy is ready.
func (s *supervisor) await(p *process) {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for !p.admin.ready(context.Background()) {
		select {
		case <-p.done:
			return
		case <-tick.C:
		}
	}
	s.send(supervise.Ready{ID: p.ID})
}

// watch reports the load of an Envoy that drains, until it ends.
func (s *supervisor) watch(p *process) {
	tick := time.NewTicker(loadInterval)
	defer tick.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-tick.C:
			if requests, connections, err := p.admin.load(context.Background()); err == nil {
				s.send(supervise.Load{ID: p.ID, Requests: requests, Connections: connections})
			}
		}
	}
}

// drain makes an Envoy close its listeners for clients, and then reports its load until it ends.
func (s *supervisor) drain(p *process) {
	tick := time.NewTicker(loadInterval)
	defer tick.Stop()
	for warned := false; ; warned = true {
		err := p.admin.drain(context.Background())
		if err == nil {
			s.watch(p)
			return
		}
		select {
		case <-p.done:
			return
		case <-tick.C:
			if !warned {
				s.log.Warn("cannot make an Envoy close its listeners; trying again until --drain-time is over", "envoy", p.ID, "err", err)
			}
		}
	}
}

func (s *supervisor) signal(id int, sig os.Signal) {
	if p := s.envoys[id]; p != nil {
		if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			s.log.Error("cannot send a signal to an Envoy", "envoy", id, "err", err)
		}
	}
}

// bury removes the files of an Envoy that has exited. If there is a next Envoy of its generation,
// that one later sends it a message to end it, and would abort if nothing listened on the socket of
// the exited Envoy. So the supervisor listens there.
func (s *supervisor) bury(p *process) {
	s.current.CompareAndSwap(p, nil)
	p.admin.close()
	remove := []string{p.socket, filepath.Join(s.dir, fmt.Sprintf("envoy-%d.json", p.ID))}
	last := true
	for _, other := range s.envoys {
		if other != p && other.Generation == p.Generation && !other.ended() {
			last = false
		}
	}
	base, err := s.base(p.Generation)
	switch {
	case !p.hot || err != nil:
	case !last:
		path := s.restartSockets(p.Generation) + "_parent_" + base + strconv.Itoa(p.Epoch%restartSlots)
		_ = os.Remove(path)
		letter, err := net.ListenPacket("unixgram", path)
		if err != nil {
			s.log.Error("cannot listen on the socket of an exited Envoy; the current one will abort at the next reload", "err", err)
			break
		}
		p.letter = letter
		go func() { _, _ = io.Copy(io.Discard, letter.(io.Reader)) }()
	default:
		remove = append(remove, s.baseFile(p.Generation), "/dev/shm/envoy_shared_memory_"+base+"0")
		sockets, _ := filepath.Glob(s.restartSockets(p.Generation) + "_*") // the pattern is valid
		remove = append(remove, sockets...)
	}
	if last {
		if s.relay != "" {
			remove = append(remove, filepath.Join(s.relay, backName(p.Generation)))
		}
		for id, other := range s.envoys {
			if other.Generation == p.Generation {
				other.close()
				delete(s.envoys, id)
			}
		}
	}
	for _, path := range remove {
		_ = os.Remove(path) // it may not exist
	}
}

// restartSlots is the number of sockets that the Envoys of a generation use in turn.
const restartSlots = 3

// exhume closes the socket that bury opened for an exited Envoy, if the next Envoy needs its name.
func (s *supervisor) exhume(l supervise.Launch) {
	for id, p := range s.envoys {
		if p.Generation == l.Generation && p.Epoch%restartSlots == l.Epoch%restartSlots && p.ended() {
			p.close()
			delete(s.envoys, id)
		}
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) close() {
	if p.letter != nil {
		_ = p.letter.Close()
	}
}
