//go:build !linux

package cluster

import (
	"context"
	"errors"
)

// Command returns an error: clusters need Linux.
func Command(context.Context, []string) error {
	return errors.New("a cluster's nodes take Linux: run this in a virtual machine")
}
