// Package cli contains what the commands of bench share: their flags, help and errors.
package cli

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"
)

// Flags returns an empty flag set for a command, which adds its own flags. The help of the flag set
// is usage followed by the flags, and is written to out.
func Flags(name, usage string, out io.Writer) *pflag.FlagSet {
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.SortFlags = false
	f.Usage = func() { fmt.Fprint(out, usage, f.FlagUsagesWrapped(100)) }
	return f
}

// Parse parses the arguments of a command. It returns an error if more than most arguments are not
// flags. For --help it prints the help and returns pflag.ErrHelp.
func Parse(f *pflag.FlagSet, args []string, most int) error {
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > most {
		return fmt.Errorf("unexpected argument %q: see bench %s --help", f.Arg(most), f.Name())
	}
	return nil
}
