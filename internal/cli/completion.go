package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

const completion = "completion"

const completionUsage = `Prints a script that completes the names of commands and flags in a shell. Load it with one of:

  source <(%[1]s completion bash)       bash, in ~/.bashrc
  source <(%[1]s completion zsh)        zsh, in ~/.zshrc after compinit
  %[1]s completion fish | source        fish, in ~/.config/fish/config.fish

Usage:

  %[1]s completion bash|zsh|fish
`

// complete is the command completion.
func (p Program) complete(ctx context.Context, args []string, out io.Writer) error {
	name := first(args)
	if name == "--help" || name == "-h" {
		say(out, completionUsage, p.Name)
		return pflag.ErrHelp
	}
	shells := map[string]func([]completed) string{"bash": p.bash, "zsh": p.zsh, "fish": p.fish}
	if len(args) != 1 || shells[name] == nil {
		return Wrong(errors.New("name one shell: bash, zsh or fish"))
	}
	var all []completed
	for c := range p.commands() {
		of, err := listFlags(ctx, c)
		if err != nil {
			return err
		}
		all = append(all, of)
	}
	say(out, "%s", shells[name](all))
	return nil
}

// listFlags returns a command with its flags and those of its subcommands.
func listFlags(ctx context.Context, c Command) (completed, error) {
	of := completed{Command: c}
	for i, name := range append([]string{""}, c.Below...) {
		args, to := []string{"--help"}, &of
		if i > 0 {
			of.below = append(of.below, completed{Command: Command{Name: name}})
			args, to = []string{name, "--help"}, &of.below[i-1]
		}
		if err := c.Run(ctx, args, to); err != nil && !errors.Is(err, pflag.ErrHelp) {
			return of, fmt.Errorf("the flags of %s: %w", strings.TrimSpace(c.Name+" "+name), err)
		}
	}
	return of, nil
}

// completed is a command with its flags. As the output of the command's help it gets the flags.
type completed struct {
	Command
	flags []*pflag.Flag
	below []completed
}

// Write ignores the help of commands without a flag set.
func (c *completed) Write(p []byte) (int, error) { return len(p), nil }

func (c *completed) list(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			c.flags = append(c.flags, f)
		}
	})
}

// words returns the flags as words of a shell. A flag without a value is one word; another one ends
// with "=".
func (c *completed) words() string {
	words := make([]string, 0, len(c.flags)+1)
	for _, f := range c.flags {
		word := "--" + f.Name
		if f.NoOptDefVal == "" {
			word += "="
		}
		words = append(words, word)
	}
	return strings.Join(append(words, "--help"), " ")
}

// names returns the commands' names, with those that each program has.
func names(all []completed) string {
	var words []string
	for _, c := range all {
		words = append(words, c.Name)
	}
	return strings.Join(append(words, completion, "help", "version"), " ")
}

func (p Program) bash(all []completed) string {
	var cases, below, linked strings.Builder
	for _, c := range all {
		first := ""
		if len(c.Below) > 0 {
			first = fmt.Sprintf(`; [ "$COMP_CWORD" = $at ] && words+=' %s'`, strings.Join(c.Below, " "))
		}
		fmt.Fprintf(&cases, "    %s) words='%s'%s;;\n", c.Name, c.words(), first)
		for _, b := range c.below {
			fmt.Fprintf(&below, "    '%s %s') [ \"$COMP_CWORD\" = $at ] || words='%s';;\n", c.Name, b.Name, b.words())
		}
		if c.Linked {
			linked.WriteString(" " + c.Name)
		}
	}
	return fmt.Sprintf(`_%[1]s() {
  local word=${COMP_LINE:0:COMP_POINT} command=${COMP_WORDS[1]} words= at=2
  word=${word##*[[:space:]]}
  local program=${COMP_WORDS[0]##*/}
  [ "$program" = %[1]s ] || { command=$program at=1; }
  if [ "$program" = %[1]s ] && [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W '%[2]s' -- "$word"))
    return
  fi
  case $command in
%[3]s    completion) words='bash zsh fish';;
    help) words='%[2]s';;
  esac
  case "$command ${COMP_WORDS[at]}" in
%[5]s  esac
  COMPREPLY=()
  case $word in --*=*) return;; esac # a value: bash completes file names
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  case ${COMPREPLY[0]} in *=) compopt -o nospace 2>/dev/null;; esac
}
complete -o default -F _%[1]s %[1]s%[4]s
`, p.Name, names(all), cases.String(), linked.String(), below.String())
}

func (p Program) zsh(all []completed) string {
	var commands, first, cases, below, linked strings.Builder
	for _, c := range all {
		fmt.Fprintf(&commands, "    %s\n", quote(c.Name+":"+c.Summary))
		fmt.Fprintf(&cases, "    %s) compadd -S '' -- %s;;\n", c.Name, c.words())
		if len(c.Below) > 0 {
			fmt.Fprintf(&first, "    %s) (( CURRENT == at )) && compadd %s;;\n", c.Name, strings.Join(c.Below, " "))
		}
		for _, b := range c.below {
			fmt.Fprintf(&below, "    '%s %s') (( CURRENT > at )) && { compadd -S '' -- %s; return; };;\n", c.Name, b.Name, b.words())
		}
		if c.Linked {
			linked.WriteString(" " + c.Name)
		}
	}
	return fmt.Sprintf(`#compdef %[1]s%[4]s
_%[1]s() {
  local command=${words[2]} program=${words[1]:t} at=3
  local -a commands=(
%[2]s    'completion:print a script that completes command lines'
    'help:explain a command'
    'version:print the version'
  )
  if [[ $program == %[1]s && $CURRENT == 2 ]]; then
    _describe command commands
    return
  fi
  [[ $program == %[1]s ]] || { command=$program at=2; }
  case $command in
%[5]s  esac
  [[ $PREFIX == -* || $command == completion ]] || { _files; return; }
  case "$command ${words[at]}" in
%[6]s  esac
  case $command in
%[3]s    completion) compadd bash zsh fish;;
  esac
}
compdef _%[1]s %[1]s%[4]s
`, p.Name, commands.String(), cases.String(), linked.String(), first.String(), below.String())
}

func (p Program) fish(all []completed) string {
	var text strings.Builder
	for _, c := range all {
		fmt.Fprintf(&text, "complete -c %s -n __fish_use_subcommand -f -a %s -d %s\n", p.Name, c.Name, quote(c.Summary))
	}
	fmt.Fprintf(&text, "complete -c %s -n __fish_use_subcommand -f -a 'completion help version'\n", p.Name)
	fmt.Fprintf(&text, "complete -c %s -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'\n", p.Name)
	for _, c := range all {
		above := ""
		if len(c.Below) > 0 {
			above = "not __fish_seen_subcommand_from " + strings.Join(c.Below, " ")
			p.fishLines(&text, c.Command, above, fmt.Sprintf("-f -a '%s'", strings.Join(c.Below, " ")))
		}
		for _, f := range c.flags {
			p.fishLines(&text, c.Command, above, fishFlag(f))
		}
		for _, b := range c.below {
			for _, f := range b.flags {
				p.fishLines(&text, c.Command, "__fish_seen_subcommand_from "+b.Name, fishFlag(f))
			}
		}
	}
	return text.String()
}

// fishLines writes a completion of a command, which applies under a condition; an empty condition
// is always true. If a link to the program is this command, it writes one for the link, too.
func (p Program) fishLines(w io.Writer, c Command, condition, words string) {
	seen, link := "__fish_seen_subcommand_from "+c.Name, ""
	if condition != "" {
		seen += "; and " + condition
		link = fmt.Sprintf(" -n '%s'", condition)
	}
	say(w, "complete -c %s -n '%s' %s\n", p.Name, seen, words)
	if c.Linked {
		say(w, "complete -c %s%s %s\n", c.Name, link, words)
	}
}

// fishFlag returns the arguments of fish's command complete for a flag.
func fishFlag(f *pflag.Flag) string {
	_, usage := pflag.UnquoteUsage(f)
	words := fmt.Sprintf("-l %s -d %s", f.Name, quote(usage))
	if f.NoOptDefVal == "" {
		words += " -r"
	}
	return words
}

// quote returns a text as one word of a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
