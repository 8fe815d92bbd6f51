//go:build !linux

package conformance

import (
	"context"
	"errors"
	"io"
)

// Command returns an error: clusters need Linux.
func Command(context.Context, []string, io.Writer) error {
	return errors.New("the suite needs the cluster of bench cluster, which runs only on Linux: run this in a virtual machine")
}
