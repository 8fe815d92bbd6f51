//go:build !linux

// Package cluster runs a real Kubernetes on this machine, which takes Linux.
package cluster

import (
	"context"
	"errors"
)

// Command is bench cluster.
func Command(context.Context, []string) error {
	return errors.New("a cluster's nodes take Linux: run this in a virtual machine")
}
