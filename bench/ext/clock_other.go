//go:build !linux

package ext

import (
	"context"
	"errors"
	"time"
)

// cpuOf returns an error: only Linux has the clocks of other processes.
func cpuOf(int) (time.Duration, error) { return 0, errors.New("--pid needs Linux") }

// alarm waits for points in time.
type alarm struct{ ctx context.Context }

func newAlarm(ctx context.Context) (*alarm, error) { return &alarm{ctx}, nil }

// wait waits until a time. An error means that ctx has ended.
func (a *alarm) wait(until time.Time) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
}

func (a *alarm) close() {}
