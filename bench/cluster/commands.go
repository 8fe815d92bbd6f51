package cluster

import "github.com/headgate/headgate/internal/cli"

// Commands are the commands of "bench cluster".
var Commands = []string{"up", "down", "status", "images", "exec", "build", "api"}

// _ requires that Command has the same type on all systems.
var _ = cli.Command{Run: Command}
