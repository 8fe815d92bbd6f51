// Package cli contains what the command lines of all programs share: tables of commands, flags with
// grouped help, errors that name the help, exit statuses and shell completion.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/internal/version"
)

// Exit statuses of all programs. Commands may add more, and describe them in their help.
const (
	Failed = 1
	Misuse = 2
)

// Status is an error with an exit status of its own. It prints nothing: the command has already
// printed why.
type Status struct {
	Code int
	Why  string
}

func (s Status) Error() string { return s.Why }

// misuse is a wrong command line.
type misuse struct{ error }

func (m misuse) Unwrap() error { return m.error }

// Wrong marks an error as a wrong command line, which ends the program with [Misuse].
func Wrong(err error) error {
	if err == nil {
		return nil
	}
	return misuse{err}
}

// Exit prints an error after the name of its program, and returns the exit status. It prints
// nothing for pflag.ErrHelp, which means that help was asked for and printed.
func Exit(name string, err error, stderr io.Writer) int {
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	if status, ok := errors.AsType[Status](err); ok {
		return status.Code
	}
	_, _ = fmt.Fprintf(stderr, "%s: %v\n", name, err)
	if _, ok := errors.AsType[misuse](err); ok {
		return Misuse
	}
	return Failed
}

// Command is one command of a program.
type Command struct {
	Name    string
	Summary string
	// Run runs the command until it is done, or until SIGINT or SIGTERM ends ctx. It prints results
	// and help to out. After it has printed help, it returns pflag.ErrHelp.
	Run func(ctx context.Context, args []string, out io.Writer) error
	// Linked says that a link to the program with the command's name is that command.
	Linked bool
	// Below lists the subcommands of this command, such as fit in "headgate profile fit". Run gets
	// the name as its first argument.
	Below []string
}

// Group is a group of commands in the help of a program.
type Group struct {
	Title    string
	Commands []Command
}

// Program is a program with commands. In addition to its commands it has help, version and
// completion.
type Program struct {
	Name   string
	About  string // what the program is, in one or a few sentences
	Groups []Group
}

// Run runs a command line, of which the first argument is the path of the program, and returns the
// exit status. Commands get stdout, and their errors are printed to stderr.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if c, ok := p.command(filepath.Base(args[0])); ok && c.Linked {
		return Exit(c.Name, c.Run(ctx, args[1:], stdout), stderr)
	}
	if args = args[1:]; len(args) == 0 {
		p.help(stderr)
		return Misuse
	}
	switch name := args[0]; name {
	case "help", "-h", "-help", "--help":
		if c, ok := p.command(first(args[1:])); ok {
			return Exit(p.Name+" "+c.Name, c.Run(ctx, []string{"--help"}, stdout), stderr)
		}
		p.help(stdout)
		return 0
	case "version", "-version", "--version":
		say(stdout, "%s %s\n", p.Name, version.Read())
		return 0
	case completion:
		return Exit(p.Name+" "+name, p.complete(ctx, args[1:], stdout), stderr)
	default:
		if c, ok := p.command(name); ok {
			return Exit(p.Name+" "+name, c.Run(ctx, args[1:], stdout), stderr)
		}
		say(stderr, "%s: there is no command %q; %[1]s --help lists them\n", p.Name, name)
		return Misuse
	}
}

func (p Program) command(name string) (Command, bool) {
	for c := range p.commands() {
		if c.Name == name {
			return c, true
		}
	}
	return Command{}, false
}

// commands iterates over the commands of all groups.
func (p Program) commands() func(yield func(Command) bool) {
	return func(yield func(Command) bool) {
		for _, g := range p.Groups {
			for _, c := range g.Commands {
				if !yield(c) {
					return
				}
			}
		}
	}
}

func (p Program) help(w io.Writer) {
	say(w, "%s\n\nUsage:\n\n  %s COMMAND [ARGUMENT...]\n", p.About, p.Name)
	for _, g := range p.Groups {
		say(w, "\n%s:\n\n", g.Title)
		for _, c := range g.Commands {
			say(w, "  %-12s %s\n", c.Name, c.Summary)
		}
	}
	say(w, "\nOthers:\n\n  %-12s print a script that completes command lines in bash, zsh or fish\n  %-12s print the version\n", completion,
		"version")
	say(w, "\n%s COMMAND --help explains a command. The exit status is 0, or 1 if the command failed, or 2 if the command line is wrong.\n",
		p.Name)
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// say prints to w and ignores errors.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
