//go:build !linux

package process

import (
	"errors"
	"time"
)

// CPUTime returns an error: only Linux has the clocks of other processes.
func CPUTime(int) (time.Duration, error) {
	return 0, errors.New("only Linux reports the CPU time of other processes")
}
