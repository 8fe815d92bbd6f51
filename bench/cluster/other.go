//go:build !linux

package cluster

import (
	"context"
	"errors"
	"io"
)

// Command returns an error: clusters need Linux.
func Command(context.Context, []string, io.Writer) error {
	return errors.New("the nodes of a cluster need Linux: run this in a virtual machine")
}
