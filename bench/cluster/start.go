//go:build linux

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/bench/image"
	"github.com/headgate/headgate/packaging/oci"
	"github.com/headgate/headgate/test/apiserver"
)

const (
	initCommand = "init"
	nodeCommand = "node"

	// lockFD and apiFD are file descriptors that the processes in the namespaces inherit.
	lockFD = 3 // lock file, which stays locked while any process of the cluster lives
	apiFD  = 4 // listener outside the namespaces, for clients of the API server

	// ready is the last line that a starting cluster prints: it now runs.
	ready = "ready"

	// patience is how long the first process may take to end.
	patience = 10 * time.Second
)

// nodeConfig is the configuration of the node, which reads it as JSON from standard input.
type nodeConfig struct {
	Dir      string
	Binaries string
	API      string   // HOST:PORT of the API server outside the namespaces
	Images   []string // paths of image tarballs
}

// up starts the cluster unless it is already running.
func up(ctx context.Context, o options, w io.Writer) error {
	if err := rootOnly(); err != nil {
		return err
	}
	for _, hidden := range []string{"/run/", "/var/", "/proc/", "/sys/"} {
		if strings.HasPrefix(o.dir+"/", hidden) || strings.HasPrefix(o.root+"/", hidden) {
			return fmt.Errorf("the cluster has a %s of its own, and sees nothing of this machine's: run this from a copy of the repository elsewhere", hidden)
		}
	}
	if c, err := Open(o.dir); err == nil {
		fmt.Fprintf(w, "it is up already, since its first process %d runs\nexport KUBECONFIG=%s\n", c.PID, c.Kubeconfig())
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(o.dir), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(lockFile(o.dir), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another process is starting or ending this cluster (%w): see bench cluster status, or end it with bench cluster down", err)
	}
	if err := clean(o.dir, false); err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.api)
	if err != nil {
		return fmt.Errorf("the API server cannot be reached at %s, choose another address with --api: %w", o.api, err)
	}
	defer listener.Close()
	api, err := listener.(*net.TCPListener).File() // a socket keeps the network namespace in which it was created
	if err != nil {
		return err
	}
	defer api.Close()
	begun := time.Now()
	if err := install(ctx, w); err != nil {
		return err
	}
	config := nodeConfig{Dir: o.dir, API: listener.Addr().String()} // the listener's address has the real port in place of port 0
	config.Binaries, err = apiserver.Build(ctx, o.root, w, programs...)
	if err != nil {
		return err
	}
	if config.Images, err = makeImages(ctx, o.root, config.Binaries, w); err != nil {
		return err
	}
	if err := spawn(ctx, config, lock, api, w); err != nil {
		return errors.Join(err, clean(o.dir, true))
	}
	fmt.Fprintf(w, "the cluster is up after %v; its logs are in %s. Try:\n\n  export KUBECONFIG=%s PATH=%s:$PATH\n  kubectl get pods --all-namespaces\n  bin/bench cluster exec -- curl http://NAME.NAMESPACE.svc.cluster.local\n\nmake cluster-down ends it.\n",
		time.Since(begun).Round(100*time.Millisecond), o.dir, (&Cluster{Dir: o.dir}).Kubeconfig(), config.Binaries)
	return nil
}

// makeImages builds the images that the cluster itself needs and those of Headgate.
func makeImages(ctx context.Context, root, binaries string, w io.Writer) ([]string, error) {
	dir := imagesDir(root)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	pause := filepath.Join(dir, "pause")
	if err := image.Compile(ctx, root, "./bench/cluster/pause", pause); err != nil {
		return nil, err
	}
	var all []string
	for _, i := range []oci.Image{oci.Static(pauseImage, pause), oci.Static(dnsImage, filepath.Join(binaries, "coredns"))} {
		file := filepath.Join(dir, image.Base(i.Name)+".tar")
		if err := i.Write(file); err != nil {
			return nil, err
		}
		all = append(all, file)
	}
	ours, err := image.Headgate(ctx, root, dir, w)
	return append(all, ours...), err
}

// spawn starts the first process in new namespaces and returns when the cluster is ready. If spawn
// returns an error, no process is left running.
func spawn(ctx context.Context, config nodeConfig, lock, api *os.File, w io.Writer) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	log, err := os.Create(logFile(config.Dir))
	if err != nil {
		return err
	}
	defer log.Close()
	first := exec.Command(program, "cluster", initCommand)
	first.Stdin, first.Stderr, first.ExtraFiles = bytes.NewReader(text), log, []*os.File{lock, api}
	first.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // the cluster outlives this process and its terminal
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	first.Env = append(os.Environ(), cgroupVariable+"="+cgroupName(config.Dir))
	progress, err := first.StdoutPipe()
	if err != nil {
		return err
	}
	if err := first.Start(); err != nil {
		return fmt.Errorf("no namespaces can be made: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = first.Process.Kill() })
	defer stop()
	if err := os.WriteFile(pidFile(config.Dir), []byte(strconv.Itoa(first.Process.Pid)), 0o644); err != nil {
		return errors.Join(err, first.Process.Kill(), first.Wait())
	}
	last := ""
	for lines := bufio.NewScanner(progress); lines.Scan(); last = lines.Text() {
		if lines.Text() != ready {
			fmt.Fprintln(w, lines.Text())
		}
	}
	if last == ready {
		return first.Process.Release()
	}
	_ = first.Process.Kill() // fails if the process has already ended
	_ = first.Wait()
	if ctx.Err() != nil {
		return errors.New("interrupted, and nothing of the cluster is left")
	}
	said, _ := os.ReadFile(logFile(config.Dir))
	return fmt.Errorf("the cluster did not come up (logs are in %s): %s", config.Dir, bytes.TrimSpace(said))
}

// down stops the cluster and removes its files, except logs.
func down(dir string, w io.Writer) error {
	if err := rootOnly(); err != nil {
		return err
	}
	begun := time.Now()
	is, err := held(dir)
	if err != nil {
		return err
	}
	if is {
		pid, err := firstProcess(dir)
		if err != nil {
			return fmt.Errorf("the cluster is being started or ended by somebody else: %w", err)
		}
		if err := end(pid); err != nil {
			return err
		}
	}
	if err := clean(dir, true); err != nil {
		return err
	}
	if !is {
		fmt.Fprintln(w, "it was not up")
		return nil
	}
	fmt.Fprintf(w, "ended after %v; its logs are in %s\n", time.Since(begun).Round(100*time.Millisecond), dir)
	return nil
}

// end ends the first process, and with it everything in its namespaces. It waits until all
// processes have ended.
func end(pid int) error {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end the process %d: %w", pid, err)
		}
		if within(patience, func() bool { return gone(pid) }) {
			return nil
		}
	}
	return fmt.Errorf("the process %d does not end", pid)
}

// within waits until a condition holds. It returns false if the condition does not hold within the
// limit.
func within(limit time.Duration, holds func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(limit); !holds(); {
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
	return true
}

// gone reports whether a process has ended. For the first process of a PID namespace, this means
// that all others in the namespace have ended, too.
func gone(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	_, fields, _ := strings.Cut(string(text), ") ") // the fields after the program's name
	return strings.HasPrefix(fields, "Z") || strings.HasPrefix(fields, "X")
}

// clean removes the cgroups and the files of an ended cluster. With keepLogs it keeps the logs.
func clean(dir string, keepLogs bool) error {
	if err := removeCgroups(cgroupName(dir)); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range entries {
		if keepLogs && strings.HasSuffix(e.Name(), ".log") {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// firstProcess returns the id of the cluster's first process, whose end is the end of the cluster.
// Call it only for a cluster that is running or starting: otherwise the id may have been reused.
func firstProcess(dir string) (int, error) {
	text, err := os.ReadFile(pidFile(dir))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

func pidFile(dir string) string { return filepath.Join(dir, "pid") }
func logFile(dir string) string { return filepath.Join(dir, "cluster.log") }

// cgroupName returns the name of a cluster's cgroups. It depends only on the directory.
func cgroupName(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return "headgate-" + hex.EncodeToString(sum[:4])
}
