// Package ci tests the scripts in .ci.
package ci

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// repository is a git repository with the scripts of .ci, a table of CI parts, and a commit.
type repository struct {
	*testing.T
	dir string
}

func newRepository(t *testing.T) repository {
	t.Helper()
	r := repository{t, t.TempDir()}
	r.git("init", "--quiet")
	for _, name := range []string{".ci/changed", ".ci/subjects"} {
		script, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		r.write(name, string(script))
	}
	r.write(".ci/parts",
		"# a comment\n\nparsers  extproc/openai extproc/kserve\nparsers  internal/engine\n\ncluster  manifests envoy.yaml\n")
	for _, path := range []string{"extproc/openai/p.go", "extproc/pick/p.go", "internal/engine/p.go", "manifests/a.yaml", "envoy.yaml"} {
		r.write(path, "")
	}
	r.commit()
	return r
}

func (r repository) run(name string, args ...string) string {
	r.Helper()
	command := exec.CommandContext(r.Context(), name, args...)
	command.Dir = r.dir
	command.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@b")
	out, err := command.CombinedOutput()
	if err != nil {
		r.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r repository) git(args ...string) string { r.Helper(); return r.run("git", args...) }

func (r repository) write(path, text string) {
	r.Helper()
	path = filepath.Join(r.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		r.Fatal(err)
	}
}

func (r repository) commit() string {
	r.Helper()
	r.git("add", "--all")
	r.git("commit", "--quiet", "--message", "c")
	return r.git("rev-parse", "HEAD")
}

// A part of CI runs if one of its paths has changed since the commit at which all parts passed. All
// parts run if that commit is unknown.
func TestChangedPartsRun(t *testing.T) {
	const all = "parsers\ncluster"
	for name, c := range map[string]struct {
		change func(r repository)
		want   string
	}{
		"nothing changed":        {func(repository) {}, ""},
		"another path":           {func(r repository) { r.write("extproc/pick/p.go", "x"); r.commit() }, ""},
		"a path of one":          {func(r repository) { r.write("internal/engine/p.go", "x"); r.commit() }, "parsers"},
		"a file":                 {func(r repository) { r.write("envoy.yaml", "x"); r.commit() }, "cluster"},
		"a path of both":         {func(r repository) { r.write("extproc/kserve/p.go", "x"); r.write("envoy.yaml", "x"); r.commit() }, all},
		"a change not committed": {func(r repository) { r.write("extproc/openai/p.go", "x") }, "parsers"},
		"a new file":             {func(r repository) { r.write("manifests/b.yaml", "") }, "cluster"},
		"a file that is gone":    {func(r repository) { r.git("rm", "--quiet", "manifests/a.yaml"); r.commit() }, "cluster"},
		"there and back": {func(r repository) {
			r.write("envoy.yaml", "x")
			r.commit()
			r.write("envoy.yaml", "")
			r.commit()
		}, ""},
		"a commit of another history": {func(r repository) {
			r.git("checkout", "--quiet", "--orphan", "rebased")
			r.write("extproc/pick/p.go", "x")
			r.commit()
		}, all},
		"a commit that does not exist": {func(r repository) { r.write(".ci/full", strings.Repeat("1", 40)) }, all},
		"an empty file":                {func(r repository) { r.write(".ci/full", "") }, all},
		"no file":                      {func(r repository) { r.git("rm", "--quiet", ".ci/full") }, all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRepository(t)
			r.write(".ci/full", r.git("rev-parse", "HEAD")+"\n")
			r.commit()
			c.change(r)
			if got := r.run("bash", ".ci/changed"); got != c.want {
				t.Errorf("the parts are %q, want %q", got, c.want)
			}
			if got := r.run("bash", ".ci/changed", "--all"); got != all {
				t.Errorf("all parts are %q", got)
			}
		})
	}
}

// The subject of each commit after the base may have at most 72 characters.
func TestLongSubjectsAreRejected(t *testing.T) {
	subject := func(n int) string { return strings.Repeat("x", n) }
	for name, c := range map[string]struct {
		subjects []string // subjects of commits; the first commit is the base
		refused  bool
	}{
		"at most 72":           {[]string{subject(72), subject(72), subject(1)}, false},
		"73":                   {[]string{subject(72), subject(73), subject(1)}, true},
		"73 before they count": {[]string{subject(73), subject(72)}, false},
		"none":                 {[]string{subject(73)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRepository(t)
			base := ""
			for _, s := range c.subjects {
				r.git("commit", "--quiet", "--allow-empty", "--message", s+"\n\n"+subject(100))
				if base == "" {
					base = r.git("rev-parse", "HEAD")
				}
			}
			out := r.run("bash", "-c", ".ci/subjects "+base+" || echo refused")
			if strings.HasSuffix(out, "refused") != c.refused {
				t.Errorf("it reports %q, want it refused: %t", out, c.refused)
			}
		})
	}
	r := newRepository(t)
	if out := r.run("bash", ".ci/subjects", strings.Repeat("1", 40)); !strings.Contains(out, "not checked") {
		t.Errorf("without the base it reports %q", out)
	}
}

// Each part of CI is a goal of make, and its paths exist. A path that does not exist never changes,
// so its part would never run.
func TestPartsAreGoalsAndTheirPathsExist(t *testing.T) {
	table, err := os.ReadFile(root + "/.ci/parts")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		parts = append(parts, fields[0])
		for _, path := range fields[1:] {
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("%s: %v", fields[0], err)
			}
		}
	}
	if parts = slices.Compact(parts); len(parts) < 3 {
		t.Fatalf("the parts are %q", parts)
	}
	for _, part := range parts {
		if part != "kubernetes" && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(part)+`:`).Match(makefile) {
			t.Errorf("make has no goal %s", part)
		}
	}
}
