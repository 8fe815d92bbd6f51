// Package surface keeps golden lists of the names that users of Headgate depend on: flags, fields
// of objects, and metrics. A name may go only with a line in the first section of CHANGELOG.md,
// under a heading that begins with "Breaking".
package surface

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

var update = flag.Bool("update", false, "write the present names into the golden lists")

// Check compares names with the golden list testdata/LIST.txt of this package. A name that is not
// in the list yet fails the test until -update adds it. A name of the list that is gone fails the
// test, also with -update, unless CHANGELOG.md mentions its last word in backquotes under a heading
// that begins with "Breaking". The words of a name are separated by spaces, such as
// "extproc --policy".
func Check(t *testing.T, list string, names []string) {
	t.Helper()
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	top := root(t)
	file := filepath.Join(top, "test/surface/testdata", list+".txt")
	text, err := os.ReadFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	changelog, err := os.ReadFile(filepath.Join(top, "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	added, gone := compare(strings.FieldsFunc(string(text), isNewline), names, breaking(string(changelog)))
	for _, name := range gone {
		t.Errorf("%s is gone, and no line under \"Breaking\" in CHANGELOG.md has `%s`", name, lastWord(name))
	}
	switch {
	case len(gone) > 0:
	case *update:
		if err := os.WriteFile(file, []byte(strings.Join(names, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	case len(added) > 0:
		t.Errorf("%s lacks %s: run go test with -update", file, strings.Join(added, ", "))
	}
}

func isNewline(r rune) bool { return r == '\n' }

// root returns the folder of the module, from the folder in which go test runs.
func root(t *testing.T) string {
	t.Helper()
	folder, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder
		}
		if folder == filepath.Dir(folder) {
			t.Fatal("no go.mod above the folder of the test")
		}
		folder = filepath.Dir(folder)
	}
}

// compare returns the names that are not known yet, and the known names that are gone without a
// line in the breaking changes.
func compare(known, names []string, breaking string) (added, gone []string) {
	for _, name := range names {
		if !slices.Contains(known, name) {
			added = append(added, name)
		}
	}
	for _, name := range known {
		if !slices.Contains(names, name) && !mentions(breaking, lastWord(name)) {
			gone = append(gone, name)
		}
	}
	return added, gone
}

// breaking returns the text under the headings that begin with "Breaking" in the first section of a
// changelog, which is that of the next version.
func breaking(changelog string) string {
	var text strings.Builder
	within, sections := false, 0
	for line := range strings.Lines(changelog) {
		if title := strings.TrimLeft(line, "#"); title != line {
			within = strings.HasPrefix(strings.TrimSpace(title), "Breaking")
			if len(line)-len(title) == len("##") {
				sections++
			}
		}
		if sections > 1 {
			break
		}
		if within {
			text.WriteString(line)
		}
	}
	return text.String()
}

// mentions reports whether a text has a name in backquotes. A field's name also counts as mentioned
// if the text has its path or the path of an object that contained it.
func mentions(text, name string) bool {
	for {
		if strings.Contains(text, "`"+name+"`") {
			return true
		}
		i := strings.LastIndex(name, ".")
		if i < 0 {
			return false
		}
		name = name[:i]
	}
}

// lastWord returns the last word of a name: the flag without its command, or the field's path
// without its kind.
func lastWord(name string) string {
	return name[strings.LastIndex(name, " ")+1:]
}

// Metrics returns the names of a registry's metrics with the prefix headgate_.
func Metrics(r *prometheus.Registry) []string {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		r.Describe(descriptions)
	}()
	var names []string
	for d := range descriptions {
		if name := metricName.FindStringSubmatch(d.String()); name != nil {
			names = append(names, name[1])
		}
	}
	return names
}

// metricName matches the name in the text of a prometheus.Desc.
var metricName = regexp.MustCompile(`fqName: "(headgate_[^"]+)"`)
