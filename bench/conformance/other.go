//go:build !linux

package conformance

import (
	"context"
	"errors"
)

// Command is bench conformance.
func Command(context.Context, []string) error {
	return errors.New("the suite runs on the cluster of bench cluster, whose nodes take Linux: run this in a virtual machine")
}
