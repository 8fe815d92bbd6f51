// Package simulated is the command "engine": it runs a simulated engine of any kind.
package simulated

import (
	"context"
	"io"
	"strings"

	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/headgate/simulated/repository"
	"github.com/headgate/headgate/headgate/simulated/runtime"
	"github.com/headgate/headgate/internal/engine"
)

// Command runs the simulated engine of the kind in the flag --kind. Model runtimes and engines with
// a model repository have their own flags. It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	for i, arg := range args {
		name, ok := strings.CutPrefix(arg, "--kind=")
		if !ok && arg == "--kind" && i+1 < len(args) {
			name = args[i+1]
		}
		switch kind := engine.Kind(name); {
		case kind == engine.ModelRuntime:
			return runtime.Command(ctx, args, out)
		case kind.Repository():
			return repository.Command(ctx, args, out)
		}
	}
	return llm.Command(ctx, args, out)
}
