package version_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/version"
)

func TestVersionFromBuildInfo(t *testing.T) {
	const commit = "v0.0.0-20261121101112-abcdef123456"
	for name, c := range map[string]struct {
		info *debug.BuildInfo
		want string
	}{
		"a commit": {&debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: commit}}, commit + " (go1.26.8)"},
		"a commit and changes": {&debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: commit + "+dirty"}}, commit +
			"+dirty (go1.26.8)"},
		"a release":              {&debug.BuildInfo{GoVersion: "go1.27.0", Main: debug.Module{Version: "v1.2.3"}}, "v1.2.3 (go1.27.0)"},
		"outside a repository":   {&debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "(devel)"}}, "devel (go1.26.8)"},
		"a test":                 {&debug.BuildInfo{GoVersion: "go1.26.8"}, "devel (go1.26.8)"},
		"a program without info": {nil, "devel (" + runtime.Version() + ")"},
	} {
		if got := version.Of(c.info).String(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Go's build information in a repository names the commit.
func TestProgramKnowsItsCommit(t *testing.T) {
	dir := t.TempDir()
	own, err := os.ReadFile("version.go")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		"go.mod":             "module example\n\ngo 1.26\n",
		"version/version.go": string(own),
		"main.go":            "package main\n\nimport \"example/version\"\n\nfunc main() { print(version.Read().String()) }\n",
	} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	var out []byte
	for _, c := range []string{
		"git init --quiet", "git add .", "git -c user.name=a -c user.email=a@b -c commit.gpgsign=false commit --quiet --message a",
		"go build -buildvcs=true -o program .", "./program",
	} {
		words := strings.Fields(c)
		command := exec.Command(words[0], words[1:]...)
		command.Dir = dir
		if out, err = command.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", c, err, out)
		}
	}
	if !regexp.MustCompile(`^v0\.0\.0-\d{14}-[0-9a-f]{12} \(go1\.\d+.*\)$`).Match(out) {
		t.Errorf("the program is %s", out)
	}
}
