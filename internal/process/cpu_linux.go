package process

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the CPU time that a process has used, in user mode and in the kernel. It includes
// all threads, also those that have ended. The kernel counts it in nanoseconds; the ticks in
// /proc/PID/stat are coarser.
func CPUTime(pid int) (time.Duration, error) {
	var used unix.Timespec
	clock := int32(^pid)<<3 | 2 // the clock of a process, see clock_getcpuclockid(3)
	if err := unix.ClockGettime(clock, &used); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}
