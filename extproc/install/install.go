// Package install implements the command install, which copies extproc into a folder from which
// Envoy's container can run it.
package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

const usage = `extproc install DIR copies this program to DIR/extproc. Envoy's container, whose image has neither extproc nor a shell,
then runs DIR/extproc drain as its preStop hook.`

// Run implements the command "install": it copies the running program into a folder. It prints help
// to out.
func Run(_ context.Context, args []string, out io.Writer) (err error) {
	if len(args) != 1 || strings.HasPrefix(args[0], "-") {
		fmt.Fprintln(out, usage)
		return pflag.ErrHelp
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
	to, err := os.OpenFile(filepath.Join(args[0], "extproc"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	_, err = io.Copy(to, from)
	return err
}
