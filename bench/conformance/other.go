//go:build !linux

package conformance

import (
	"context"
	"errors"
)

// Command returns an error: clusters need Linux.
func Command(context.Context, []string) error {
	return errors.New("the suite runs on the cluster of bench cluster, whose nodes take Linux: run this in a virtual machine")
}
