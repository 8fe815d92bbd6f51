package cost

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of /proc/stat: Linux reports hundredths of a second on every architecture of Go.
const tick = 10 * time.Millisecond

// busy returns the CPU time that a machine's processors have spent on anything, from the text of
// /proc/stat. Time that a hypervisor gave to others (steal) is included.
func busy(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	// The fields are: cpu user nice system idle iowait irq softirq steal guest guest_nice. Guests'
	// times are also in user and nice.
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var sum int64
	for i, text := range fields[1:9] {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 { // idle, iowait
			sum += n
		}
	}
	return time.Duration(sum) * tick, nil
}

// busyNow is busy of this machine.
func busyNow() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return busy(string(text))
}

// anonymous returns the anonymous memory of a process in bytes, from the text of /proc/PID/status.
func anonymous(status string) (float64, error) {
	_, rest, ok := strings.Cut(status, "\nRssAnon:")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 2 || fields[1] != "kB" {
		return 0, errors.New("/proc/PID/status has no RssAnon in kB")
	}
	n, err := strconv.ParseUint(fields[0], 10, 53)
	return float64(n) * 1024, err
}

// memoryOf is anonymous of a process.
func memoryOf(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return anonymous(string(text))
}

// processor returns the name of the processor, from the text of /proc/cpuinfo.
func processor(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// machine returns a line that describes this machine.
func machine() string {
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo")
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("machine: %d CPUs (%s), %s %s", runtime.NumCPU(), processor(string(cpuinfo)), runtime.GOOS,
		strings.TrimSpace(string(release)))
}
