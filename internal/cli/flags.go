package cli

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"
)

// FlagSet is a flag set whose help shows the flags in groups.
type FlagSet struct {
	*pflag.FlagSet
	groups []group
}

// group is a group of flags: those from the number first on, up to the next group.
type group struct {
	title string
	first int
}

// width is the number of columns of the help.
const width = 100

// Flags returns an empty flag set for a command, which adds its own flags. The name is what users
// type, such as "headgate run". The help consists of usage and the flags, and is written to out.
func Flags(name, usage string, out io.Writer) *FlagSet {
	f := &FlagSet{FlagSet: pflag.NewFlagSet(name, pflag.ContinueOnError)}
	f.SortFlags = false
	f.Usage = func() {
		if to, ok := out.(lister); ok {
			to.list(f.FlagSet)
			return
		}
		say(out, "%s%s", usage, f.help())
	}
	return f
}

// lister is an output that gets flags instead of help.
type lister interface{ list(fs *pflag.FlagSet) }

// Group begins a group of flags: those that are added until the next call. The title is printed
// above them.
func (f *FlagSet) Group(title string) {
	n := 0
	f.VisitAll(func(*pflag.Flag) { n++ })
	f.groups = append(f.groups, group{title, n})
}

// help returns the flags as text, group by group.
func (f *FlagSet) help() string {
	groups := f.groups
	if len(groups) == 0 || groups[0].first > 0 {
		groups = append([]group{{"Flags", 0}}, groups...)
	}
	var all []*pflag.Flag
	f.VisitAll(func(one *pflag.Flag) { all = append(all, one) })
	text := ""
	for i, g := range groups {
		end := len(all)
		if i+1 < len(groups) {
			end = groups[i+1].first
		}
		part := pflag.NewFlagSet("", pflag.ContinueOnError)
		part.SortFlags = false
		for _, one := range all[g.first:end] {
			part.AddFlag(one)
		}
		if !part.HasAvailableFlags() {
			continue
		}
		if text != "" {
			text += "\n"
		}
		text += g.title + ":\n\n" + part.FlagUsagesWrapped(width)
	}
	return text
}

// Wrong returns an error about the command line, with a hint at the help.
func (f *FlagSet) Wrong(err error) error {
	if err == nil {
		return nil
	}
	return Wrong(fmt.Errorf("%w; see %s --help", err, f.Name()))
}

// Parse parses the arguments of a command. It returns an error if more than most arguments are not
// flags. For --help it prints the help and returns pflag.ErrHelp.
func Parse(f *FlagSet, args []string, most int) error {
	switch err := f.Parse(args); {
	case err == pflag.ErrHelp: //nolint:errorlint // pflag returns it unwrapped
		return err
	case err != nil:
		return f.Wrong(err)
	case f.NArg() > most:
		return f.Wrong(fmt.Errorf("unexpected argument %q", f.Arg(most)))
	}
	return nil
}
