package process_test

import (
	"os"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/process"
)

func TestCPUTimeOfThisProcess(t *testing.T) {
	before, err := process.CPUTime(os.Getpid())
	if err != nil {
		t.Skip(err)
	}
	for after := before; after < before+5*time.Millisecond; {
		if after, err = process.CPUTime(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := process.CPUTime(1 << 22); err == nil { // more than Linux allows
		t.Error("a process that does not exist has CPU time")
	}
}
