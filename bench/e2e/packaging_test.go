package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/coreos/go-systemd/v22/unit"

	"github.com/headgate/headgate/internal/process"
)

const (
	unitsDir    = root + "/packaging/systemd"
	composeFile = root + "/packaging/compose.yaml"
	installed   = "/usr/local/bin/headgate"
)

// unitOption returns the values of an option of a unit.
func unitOption(t *testing.T, file, name string) []string {
	t.Helper()
	f, err := os.Open(filepath.Join(unitsDir, file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	options, err := unit.DeserializeOptions(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, o := range options {
		if o.Name == name {
			all = append(all, o.Value)
		}
	}
	return all
}

// environment returns the variables of headgate.env.
func environment(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(unitsDir, "headgate.env"))
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(name, "#") {
			all[name] = strings.Trim(value, `"`)
		}
	}
	return all
}

// commandLine returns the command line that systemd makes of a unit.
func commandLine(t *testing.T, file string) []string {
	t.Helper()
	lines := unitOption(t, file, "ExecStart")
	if len(lines) != 1 {
		t.Fatalf("%s has %d lines ExecStart", file, len(lines))
	}
	env := environment(t)
	var all []string
	for word := range strings.FieldsSeq(lines[0]) {
		name, variable := strings.CutPrefix(word, "$")
		if !variable {
			all = append(all, word)
			continue
		}
		value, ok := env[name]
		if !ok {
			t.Fatalf("%s: headgate.env has no %s", file, name)
		}
		all = append(all, strings.Fields(value)...) // systemd splits $NAME into words
	}
	return all
}

// machine is a folder that takes the place of the root, and an address that takes that of the host.
type machine struct {
	*stack
	root, address string
	starter       process.Starter
}

// newMachine returns a machine with the files in /etc/headgate that docs/run.md describes.
func newMachine(t *testing.T) *machine {
	t.Helper()
	s := start(t)
	s.Envoy.Kill()
	s.Extproc.Kill()
	m := &machine{stack: s, root: s.shortDir(), address: strings.TrimSuffix(s.Listen, "1:8080") + "9", starter: process.NewStarter()}
	t.Cleanup(func() { close(m.starter) })
	for _, dir := range []string{"/etc/headgate", "/run/headgate", "/var/lib/headgate"} {
		if err := os.MkdirAll(m.root+dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	etc := m.root + "/etc/headgate"
	if err := os.CopyFS(etc+"/objects", os.DirFS(s.objects)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(etc+"/keys", []byte("alice=key-of-alice\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	certificate(t, etc+"/tls.crt", etc+"/tls.key")
	s.url = "https://" + m.address + ":8443"
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return m
}

// command returns a command line of the machine.
func (m *machine) command(args []string) *exec.Cmd {
	m.t.Helper()
	here := strings.NewReplacer(
		"unix:/run/", "unix:"+m.root+"/run/", "127.0.0.1", m.address, "0.0.0.0", m.address,
		installed, m.Programs.Headgate, "/usr/local/bin/envoy", m.Programs.Envoy,
	)
	changed := make([]string, len(args))
	for i, a := range args {
		if changed[i] = here.Replace(a); strings.HasPrefix(a, "/etc/") || strings.HasPrefix(a, "/var/") || strings.HasPrefix(a, "/run/") {
			changed[i] = m.root + a
		}
	}
	command := exec.Command(changed[0], changed[1:]...)
	command.Env = append(os.Environ(), "PATH="+filepath.Dir(m.envoyOnPath())+":"+os.Getenv("PATH")) //nolint:forbidigo // for Envoy
	return command
}

// run runs a command line of the machine.
func (m *machine) run(name string, args []string) *process.Process {
	m.t.Helper()
	p, err := m.starter.Start(name, m.Dir, m.command(args))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { p.Stop(10 * time.Second) })
	return p
}

// envoyOnPath returns a link to Envoy with the name envoy.
func (m *machine) envoyOnPath() string {
	m.t.Helper()
	link := filepath.Join(m.root, "envoy")
	path, err := filepath.Abs(m.Programs.Envoy)
	if err == nil {
		err = os.Symlink(path, link)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		m.t.Fatal(err)
	}
	return link
}

// answers waits until a request with a key is answered, and checks that one without is not.
func (m *machine) answers(t *testing.T) {
	t.Helper()
	r := completion("a01", 1, false)
	r.header = map[string]string{"authorization": "Bearer key-of-alice"}
	m.await("a request is answered", func() bool {
		a, err := m.ask(m.t.Context(), r)
		return err == nil && a.status == 200
	})
	refused(t, "a request without a key", m.must(completion("a01", 1, false)), http.StatusUnauthorized, "invalid_api_key")
}

// healthy waits until the doctor of docs/run.md finds no fault.
func (m *machine) healthy() {
	m.t.Helper()
	page, err := os.ReadFile(root + "/docs/run.md")
	if err != nil {
		m.t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^(?:sudo )?headgate (doctor .*)$`).FindSubmatch(page)
	if line == nil {
		m.t.Fatal("docs/run.md has no command headgate doctor")
	}
	args := append([]string{installed}, strings.Fields(string(line[1]))...)
	defaults := []string{"--control-url", "http://127.0.0.1:9091", "--extproc-url", "http://127.0.0.1:9090", "--envoy-admin", "127.0.0.1:9901"}
	var last string
	defer func() {
		if m.t.Failed() {
			m.t.Log(last)
		}
	}()
	m.await("headgate doctor finds no fault", func() bool {
		out, err := m.command(append(args, defaults...)).CombinedOutput()
		last = string(out)
		return err == nil
	})
}

// The command lines of the systemd units run Headgate. extproc is replaced as headgate-take-over
// does it.
func TestUnitsRun(t *testing.T) {
	runs(t)
	m := newMachine(t)
	m.run("control", commandLine(t, "headgate-control.service"))
	a := m.run("extproc-a", commandLine(t, "headgate-extproc@.service"))
	envoy := m.run("front", commandLine(t, "headgate-envoy.service"))
	m.answers(t)
	m.healthy()

	// systemctl for headgate-take-over: instance a runs.
	bin := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(bin, "systemctl"), "#!/bin/sh\necho \"$@\" >> "+bin+"/calls\ncase \"$*\" in\n"+
		"'--quiet is-active headgate-extproc@a') exit 0;;\n'--quiet is-active headgate-extproc@b') [ ! -e "+bin+"/dead ];;\nesac\n")
	over := func() (string, error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		c := exec.CommandContext(ctx, filepath.Join(unitsDir, "headgate-take-over"))
		c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "SOCKET="+m.root+"/run/headgate/extproc.sock") //nolint:forbidigo // for systemctl
		out, err := c.CombinedOutput()
		return string(out), err
	}
	calls := func() string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(bin, "calls"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return string(text)
	}
	done := make(chan error, 1)
	go func() {
		out, err := over()
		if err == nil && !strings.Contains(out, "headgate-extproc@b has taken over") {
			err = errors.New(out)
		}
		done <- err
	}()
	m.await("instance b is to start", func() bool { return strings.Contains(calls(), "start headgate-extproc@b\n") })
	m.run("extproc-b", commandLine(t, "headgate-extproc@.service"))
	if err := <-done; err != nil {
		t.Errorf("headgate-take-over: %v", err)
	}
	if !strings.HasSuffix(calls(), "stop headgate-extproc@a\n") {
		t.Errorf("instance a is not stopped: %s", calls())
	}
	a.Stop(10 * time.Second)
	m.answers(t)
	write(filepath.Join(bin, "dead"), "")
	if out, err := over(); err == nil || !strings.Contains(out, "did not take over") || !strings.HasSuffix(calls(), "stop headgate-extproc@b\n") {
		t.Errorf("an instance that ends: %s, %v; systemctl %s", out, err, calls())
	}
	envoy.Stop(20 * time.Second)
}

func TestUnitsAreValid(t *testing.T) {
	runs(t)
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	dir := t.TempDir()
	var files []string
	for _, name := range []string{"headgate-control.service", "headgate-envoy.service", "headgate-extproc@.service"} {
		text, err := os.ReadFile(filepath.Join(unitsDir, name))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, strings.Replace(name, "@", "@a", 1))
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), installed, "/bin/true")), 0o644); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	if out, err := exec.Command(analyze, append([]string{"verify", "--man=no"}, files...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// The compose file is valid, and its command lines run Headgate.
func TestComposeFileRuns(t *testing.T) {
	runs(t)
	text, err := os.ReadFile(composeFile)
	if err != nil {
		t.Fatal(err)
	}
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: filepath.Dir(composeFile), ConfigFiles: []types.ConfigFile{{Filename: composeFile, Content: text}},
		Environment: types.Mapping{},
	})
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	for _, name := range []string{"control", "extproc", "envoy"} {
		service, err := project.GetService(name)
		if err != nil {
			t.Fatal(err)
		}
		program := []string(service.Entrypoint)
		if program == nil {
			program = []string{installed} // the image's
		}
		for _, v := range service.Volumes {
			if !strings.HasSuffix(v.Target, "/headgate") {
				t.Errorf("%s: the volume %s is none of the folders that its command names", name, v.Target)
			}
		}
		m.run(name+"-composed", append(program, service.Command...))
	}
	m.answers(t)
	if ports := project.Services["envoy"].Ports; len(ports) != 1 || ports[0].Target != 8443 || ports[0].Published != "8443" {
		t.Errorf("the ports are %v", ports)
	}
}
