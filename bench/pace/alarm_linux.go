package pace

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm waits for points in time. On Linux Go's own timers may be a millisecond late, which would
// count as the picker's latency. An alarm is a timer of the kernel (timerfd_create(2)), and
// occupies no processor while it waits. It is not safe for concurrent use. The caller must call
// close.
type alarm struct {
	fd   int
	file *os.File // of fd
	stop func() bool
}

// newAlarm returns an alarm whose waits end when ctx ends.
func newAlarm(ctx context.Context) (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "alarm")
	return &alarm{fd, file, context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })}, nil
}

// wait waits until a time. An error means that ctx has ended.
func (a *alarm) wait(until time.Time) error {
	left := time.Until(until)
	if left <= 0 {
		return nil
	}
	if err := unix.TimerfdSettime(a.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(left.Nanoseconds())}, nil); err != nil {
		return fmt.Errorf("timerfd_settime: %w", err)
	}
	var times [8]byte
	_, err := a.file.Read(times[:])
	return err
}

func (a *alarm) close() {
	a.stop()
	_ = a.file.Close()
}
