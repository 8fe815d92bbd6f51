package gobuild

import (
	"strings"
	"testing"
	"time"
)

// A build reports the number of compiled packages every ten seconds. Its error contains all other
// output.
func TestBuildReportsProgress(t *testing.T) {
	begun := time.Unix(0, 0)
	now := begun
	var progress strings.Builder
	c := &compiling{name: "etcd", progress: &progress, now: func() time.Time { return now }, begun: begun, last: begun}
	for _, step := range []struct {
		at   time.Duration
		text string
	}{
		{time.Second, "internal/cpu\nruntime\n"},
		{11 * time.Second, "fm"},
		{12 * time.Second, "t\nnet\n"},
		{13 * time.Second, "go: no such module\n"},
		{25 * time.Second, "os\n"},
	} {
		now = begun.Add(step.at)
		if n, err := c.Write([]byte(step.text)); n != len(step.text) || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := "building etcd: 3 packages compiled in 12s\nbuilding etcd: 5 packages compiled in 25s\n"; progress.String() != want {
		t.Errorf("it reports\n%swant\n%s", &progress, want)
	}
	if c.rest.String() != "go: no such module\n" {
		t.Errorf("it keeps %q", &c.rest)
	}
}
