//go:build !linux

package pace

import (
	"context"
	"time"
)

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
