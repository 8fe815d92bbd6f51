// Package explain is the command "control explain": it prints which rule of which route takes a request, and why.
package explain

import (
	"context"
	"io"

	"github.com/headgate/headgate/control/attach/routes"
)

// Command is the command "explain". It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	return routes.Explain(ctx, args, out)
}
