// Package cli has what the commands of bench share: their flags, help and errors.
package cli

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"
)

// Flags returns the flags of a command, of which there are none yet. Its help is usage and the
// flags, and goes to out.
func Flags(name, usage string, out io.Writer) *pflag.FlagSet {
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.SortFlags = false
	f.Usage = func() { fmt.Fprint(out, usage, f.FlagUsagesWrapped(100)) }
	return f
}

// Parse parses the arguments of a command. More than most arguments that are not flags are an
// error. For --help it prints the help and returns pflag.ErrHelp.
func Parse(f *pflag.FlagSet, args []string, most int) error {
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > most {
		return fmt.Errorf("unexpected argument %q: see bench %s --help", f.Arg(most), f.Name())
	}
	return nil
}
