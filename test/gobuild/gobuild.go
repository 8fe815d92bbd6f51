// Package gobuild builds programs of other projects from their Go modules, for tests. No release is
// downloaded, and the programs' modules are not those of Headgate.
package gobuild

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/process"
)

// Program locates the code of a program.
type Program struct {
	Module string // folder below tools that has the go.mod
	Path   string // import path of the program
	Flags  string // -ldflags
	Static bool   // link statically, for images without libraries
}

// Build builds some of the programs, by name. It returns the folder of the binaries, which is
// .cache/FOLDER of the repository at root. It reuses binaries of earlier calls. If several
// processes build the same program, one builds it and the others wait. Build writes a line to
// progress for each long step.
func Build(
	ctx context.Context, root, folder string, progress io.Writer, programs map[string]Program, names ...string,
) (string, error) {
	dir, err := filepath.Abs(filepath.Join(root, ".cache", folder))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := process.Lock(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	var missing, stamps []string
	for _, name := range names {
		program, ok := programs[name]
		if !ok {
			return "", fmt.Errorf("there is no program %s in %s", name, folder)
		}
		stamp, err := program.inputs(root)
		if err != nil {
			return "", err
		}
		if !built(filepath.Join(dir, name), stamp) {
			missing, stamps = append(missing, name), append(stamps, stamp)
		}
	}
	for i, name := range missing {
		fmt.Fprintf(progress, "building %s from its Go module, %d of %d; this takes minutes once\n", name, i+1, len(missing))
		if err := programs[name].build(ctx, root, filepath.Join(dir, name), stamps[i], progress); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// built reports whether the binary at path exists and was built from the inputs in stamp.
func built(path, stamp string) bool {
	made, err := os.ReadFile(path + ".inputs")
	if err != nil || string(made) != stamp {
		return false
	}
	_, err = os.Stat(path)
	return err == nil
}

// build builds one binary. It replaces the file at path atomically.
func (p Program) build(ctx context.Context, root, path, stamp string, progress io.Writer) error {
	name, tools := filepath.Base(path), filepath.Join(root, "tools", p.Module)
	begun := time.Now()
	command := exec.CommandContext(ctx, "go", "-C", tools, "build", "-v", "-trimpath", "-ldflags", p.Flags, "-o", path+".part", p.Path)
	command.Env = append(os.Environ(), "GOWORK=off")
	if p.Static {
		command.Env = append(command.Env, "CGO_ENABLED=0")
	}
	out := &compiling{name: name, progress: progress, now: time.Now, begun: begun, last: begun}
	command.Stdout, command.Stderr = out, out
	if err := command.Run(); err != nil {
		return fmt.Errorf("build %s (this needs Go and, the first time, the Go module proxy; try: go -C %s build %s): %w\n%s",
			name, tools, p.Path, err, strings.TrimSpace(out.rest.String()))
	}
	if err := os.Rename(path+".part", path); err != nil {
		return err
	}
	fmt.Fprintf(progress, "built %s in %v\n", name, time.Since(begun).Round(time.Second))
	if err := os.WriteFile(path+".inputs.part", []byte(stamp), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".inputs.part", path+".inputs")
}

// compiling reads the output of go build -v and reports progress.
type compiling struct {
	name     string
	progress io.Writer
	now      func() time.Time

	begun, last time.Time // start of the build, and time of the last report
	packages    int       // number of packages compiled so far
	line        []byte    // beginning of an incomplete line
	rest        bytes.Buffer
}

// reportEvery is the time between two progress reports of a build.
const reportEvery = 10 * time.Second

// Write parses output of go build. A line with one word names the next package to compile. Other
// lines are kept for the error message.
func (c *compiling) Write(part []byte) (int, error) {
	c.line = append(c.line, part...)
	for {
		line, after, whole := bytes.Cut(c.line, []byte("\n"))
		if !whole {
			return len(part), nil
		}
		if len(bytes.Fields(line)) == 1 {
			c.packages++
		} else {
			c.rest.Write(append(line, '\n'))
		}
		c.line = append([]byte(nil), after...)
		if now := c.now(); now.Sub(c.last) >= reportEvery {
			c.last = now
			fmt.Fprintf(c.progress, "building %s: %d packages compiled in %v\n", c.name, c.packages, now.Sub(c.begun).Round(time.Second))
		}
	}
}

// inputs returns the versions of Go and of all modules as text. If the text has changed, the binary
// must be built again.
func (p Program) inputs(root string) (string, error) {
	tools := filepath.Join(root, "tools", p.Module)
	modules, err := os.ReadFile(filepath.Join(tools, "go.mod"))
	if err != nil {
		return "", err
	}
	version, err := exec.Command("go", "-C", tools, "env", "GOVERSION").Output()
	if err != nil {
		return "", fmt.Errorf("go, which builds programs from their modules, does not run: %w", err)
	}
	return string(version) + p.Flags + string(modules), nil
}

// Root returns the root of the repository that contains the folder dir.
func Root(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "tools", "kubernetes", "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "",
				fmt.Errorf("%s is not in a copy of Headgate's repository: run this from one, since programs are built from tools there", dir)
		}
	}
}
