//go:build !linux

package cost

import (
	"errors"
	"time"
)

// cpuTime returns an error: the CPU time of other processes is read as Linux reports it.
func cpuTime(int) (time.Duration, error) {
	return 0, errors.New("the CPU time of processes is read as Linux reports it: run this in a virtual machine")
}
