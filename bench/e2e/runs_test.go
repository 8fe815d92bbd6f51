package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/headgate/rig"
)

// mark is a way in which a test runs. A test without marks runs in parallel with others, on
// envoy.yaml, and on programs without the race detector.
type mark int

const (
	raced   mark = 1 << iota // the programs are built with the race detector
	alone                    // no other test runs at the same time, because this one measures time
	gateway                  // Envoy is the data plane of a Gateway, unless the test chooses another data plane
)

var allRaced = flag.Bool("raced", false, "run all tests on programs with the race detector")

// marks contains the marks of each running test, by test name.
var marks sync.Map

// runs sets the marks of a test. Every test calls it first. Unless the test is marked alone, runs
// makes it parallel.
func runs(t *testing.T, as ...mark) {
	t.Helper()
	all := mark(0)
	for _, m := range as {
		all |= m
	}
	marks.Store(t.Name(), all)
	if all&alone == 0 {
		t.Parallel() // go test runs the tests that do not call Parallel first, one at a time
	}
}

// onBothPlanes runs a test twice: on envoy.yaml, and at a Gateway with programs that have the race
// detector.
func onBothPlanes(t *testing.T, test func(*testing.T), as ...mark) {
	t.Helper()
	t.Parallel()
	t.Run("envoy.yaml", func(t *testing.T) {
		runs(t, as...)
		test(t)
	})
	t.Run("gateway", func(t *testing.T) {
		runs(t, append(as, gateway, raced)...)
		test(t)
	})
}

// is reports whether a test has the mark. A subtest has the marks of the test that contains it, and
// a benchmark has none.
func (m mark) is(t testing.TB) bool {
	t.Helper()
	for name := t.Name(); ; {
		if all, ok := marks.Load(name); ok {
			return all.(mark)&m != 0
		}
		slash := strings.LastIndexByte(name, '/')
		if slash < 0 {
			break
		}
		name = name[:slash]
	}
	if _, ok := t.(*testing.T); ok {
		t.Fatal("the test does not say how it runs: begin it with runs or onBothPlanes")
	}
	return false
}

// builds is the folder of this run's programs, with functions that build the programs. Each
// function builds once, when a test first needs its programs.
type builds struct {
	dir          string
	plain, raced func() (rig.Programs, error)
}

var built builds

// programs returns the programs for a test, with the race detector if the test is marked raced.
func programs(t testing.TB) rig.Programs {
	t.Helper()
	looked.Do(look)
	build := built.plain
	if raced.is(t) || *allRaced {
		build = built.raced
	}
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newBuilds creates the folder for programs. The caller removes it.
func newBuilds() (b builds, err error) {
	b.dir, err = os.MkdirTemp("", "headgate-e2e-")
	b.plain = sync.OnceValues(func() (rig.Programs, error) { return build(filepath.Join(b.dir, "plain")) })
	b.raced = sync.OnceValues(func() (rig.Programs, error) { return build(filepath.Join(b.dir, "raced"), "-race") })
	return b, err
}

func build(dir string, flags ...string) (p rig.Programs, err error) {
	args := append([]string{"build", "-o", dir + "/"}, flags...)
	if out, err := exec.Command("go", append(args, "../../headgate")...).CombinedOutput(); err != nil {
		return p, fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	p.Headgate = filepath.Join(dir, "headgate")
	p.Envoy, err = find.Envoy(context.Background(), cache, os.Stderr)
	return p, err
}
