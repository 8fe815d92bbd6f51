package ext

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf returns the CPU time that a process has used. It reads the clock of the process (see
// clock_getcpuclockid(3)), which is finer than the ticks in /proc/PID/stat.
func cpuOf(pid int) (time.Duration, error) {
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|2, &used); err != nil {
		return 0, fmt.Errorf("the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// sleepUntil waits until a time, and returns an error if ctx ends first. Go's own timers may be a
// millisecond late on Linux, which would count as the picker's latency.
func sleepUntil(ctx context.Context, until time.Time) error {
	for ctx.Err() == nil {
		left := time.Until(until)
		if left <= 0 {
			return nil
		}
		// Signals interrupt the sleep, and ctx does not.
		request := unix.NsecToTimespec(min(left, 50*time.Millisecond).Nanoseconds())
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &request, nil)
	}
	return ctx.Err()
}
