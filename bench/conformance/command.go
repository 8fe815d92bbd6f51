package conformance

import "github.com/headgate/headgate/internal/cli"

// _ requires that Command has the same type on all systems.
var _ = cli.Command{Run: Command}
