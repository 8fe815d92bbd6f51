//go:build !linux

package ext

import (
	"context"
	"errors"
	"time"
)

// cpuOf returns an error: only Linux has the clocks of other processes.
func cpuOf(int) (time.Duration, error) { return 0, errors.New("--pid needs Linux") }

// sleepUntil waits until a time, and returns an error if ctx ends first.
func sleepUntil(ctx context.Context, until time.Time) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
