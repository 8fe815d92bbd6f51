// Package install implements the command install, which copies extproc into a folder from which
// Envoy's container can run it.
package install

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/headgate/headgate/internal/cli"
)

const usage = `extproc install DIR copies this program to DIR/extproc. Envoy's container, whose image has neither extproc nor a shell,
then runs DIR/extproc drain as its preStop hook.

Usage:

  extproc install DIR
`

// Run implements the command "install": it copies the running program into a folder. It prints help
// to out.
func Run(_ context.Context, args []string, out io.Writer) (err error) {
	flags := cli.Flags("extproc install", usage, out)
	if err := cli.Parse(flags, args, 1); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return flags.Wrong(errors.New("name the folder"))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from, err := os.Open(self)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(flags.Arg(0), "extproc"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	_, err = io.Copy(to, from)
	return err
}
