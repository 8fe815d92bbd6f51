package cli_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/headgate/headgate/internal/cli"
)

// errBroken is the error of the command fly.
var errBroken = errors.New("a wing is broken")

// program has a command that flies, of which a link is the command, and one that ends with a status
// of its own.
var program = cli.Program{
	Name: "bird", About: "A bird.",
	Groups: []cli.Group{{Title: "Move", Commands: []cli.Command{
		{Name: "fly", Summary: "fly away", Linked: true, Run: func(_ context.Context, args []string, out io.Writer) error {
			fs := cli.Flags("bird fly", "Flies.\n\nUsage:\n\n  bird fly\n\n", out)
			fs.Group("Where")
			fs.String("to", "", "fly to this `PLACE`")
			fs.Bool("high", false, "fly high")
			fs.Group("Hidden")
			fs.Bool("secret", false, "not shown")
			_ = fs.MarkHidden("secret")
			fs.Group("When")
			fs.Int("at", 7, "fly at this `HOUR`, which's early")
			if err := cli.Parse(fs, args, 1); err != nil {
				return err
			}
			return errBroken
		}},
		{Name: "dive", Summary: "dive", Linked: true, Below: []string{"deep"}, Run: func(_ context.Context, args []string, out io.Writer) error {
			if len(args) > 0 && args[0] == "deep" {
				fs := cli.Flags("bird dive deep", "Dives deep.\n", out)
				fs.Int("meters", 0, "dive `METERS` deep")
				return cli.Parse(fs, args[1:], 0)
			}
			fs := cli.Flags("bird dive", "Dives.\n", out)
			fs.Bool("fast", false, "dive fast")
			return cli.Parse(fs, args, 0)
		}},
		{Name: "walk", Summary: "walk", Run: func(_ context.Context, args []string, out io.Writer) error {
			if err := cli.Parse(cli.Flags("bird walk", "Walks.\n", out), args, 0); err != nil {
				return err
			}
			return cli.Status{Code: 3, Why: "no legs"}
		}},
	}}},
}

func TestExitStatusAndErrors(t *testing.T) {
	for _, c := range []struct {
		args, stdout, stderr string
		status               int
	}{
		{"bird fly", "", "bird fly: a wing is broken\n", 1},
		{"/bin/fly", "", "fly: a wing is broken\n", 1},
		{"bird fly a b", "", "bird fly: unexpected argument \"b\"; see bird fly --help\n", 2},
		{"bird fly --no", "", "bird fly: unknown flag: --no; see bird fly --help\n", 2},
		{"/bin/walk", "", "A bird.", 2},
		{"bird walk", "", "", 3},
		{"bird swim", "", "bird: there is no command \"swim\"; bird --help lists them\n", 2},
		{"bird help", "  fly          fly away\n", "", 0},
		{"bird fly -h", "Flies.", "", 0},
		{"bird completion", "", "bird completion: name one shell: bash, zsh or fish", 2},
		{"bird completion --help", "Usage:\n\n  bird completion bash|zsh|fish\n", "", 0},
	} {
		var stdout, stderr bytes.Buffer
		status := program.Run(t.Context(), strings.Fields(c.args), &stdout, &stderr)
		if status != c.status || !strings.Contains(stdout.String(), c.stdout) || !strings.HasPrefix(stderr.String(), c.stderr) ||
			(c.stderr == "") != (stderr.Len() == 0) {
			t.Errorf("%s: exit status %d, prints %q and %q; want %d, %q and %q", c.args, status, stdout.String(), stderr.String(),
				c.status, c.stdout, c.stderr)
		}
	}
	if cli.Wrong(nil) != nil {
		t.Error("no error is a wrong command line")
	}
}

func TestHelpShowsFlagsInGroups(t *testing.T) {
	var out bytes.Buffer
	program.Run(t.Context(), []string{"bird", "fly", "--help"}, &out, io.Discard)
	want := "Flies.\n\nUsage:\n\n  bird fly\n\nWhere:\n\n      --to PLACE   fly to this PLACE\n      --high       fly high\n\n" +
		"When:\n\n      --at HOUR   fly at this HOUR, which's early (default 7)\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("the help (-want +got):\n%s", diff)
	}
	out.Reset()
	fs := cli.Flags("x", "", &out)
	fs.Bool("a", false, "first")
	fs.Group("Others")
	fs.Bool("b", false, "second")
	if err := cli.Parse(fs, []string{"--help"}, 0); !errors.Is(err, pflag.ErrHelp) ||
		out.String() != "Flags:\n\n      --a   first\n\nOthers:\n\n      --b   second\n" {
		t.Errorf("%v:\n%s", err, &out)
	}
}

// bash completes with the script: the names of commands, flags, and nothing for values.
func TestBashCompletes(t *testing.T) {
	var script bytes.Buffer
	if status := program.Run(t.Context(), []string{"bird", "completion", "bash"}, &script, io.Discard); status != 0 {
		t.Fatalf("exit status %d", status)
	}
	for line, want := range map[string]string{
		"bird ":             "fly dive walk completion help version",
		"bird f":            "fly",
		"bird fly --":       "--to= --high --at= --help",
		"bird fly --high -": "--to= --high --at= --help",
		"bird fly --to=x":   "",
		"fly --h":           "--high --help",
		"/usr/bin/fly --a":  "--at=",
		"bird completion z": "zsh",
		"bird help w":       "walk",
		"bird dive ":        "--fast --help deep",
		"bird dive de":      "deep",
		"bird dive --":      "--fast --help",
		"bird dive deep -":  "--meters= --help",
		"bird dive deep x":  "",
		"bird fly deep --h": "--high --help",
		"dive d":            "deep",
		"dive deep --":      "--meters= --help",
	} {
		words := strings.Split(line, " ")
		test := script.String() + "COMP_LINE=$1 COMP_POINT=${#1}; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _bird; echo \"${COMPREPLY[*]}\""
		out, err := exec.Command("bash", append([]string{"-c", test, "-", line}, words...)...).Output()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%q is completed with %q, %v; want %q", line, out, err, want)
		}
	}
}

// The scripts for zsh and fish have the commands and flags, and quote what they show. The shells
// themselves check the syntax where they are installed.
func TestZshAndFishComplete(t *testing.T) {
	for shell, want := range map[string][]string{
		"zsh": {
			"#compdef bird fly dive\n", "'fly:fly away'\n", "fly) compadd -S '' -- --to= --high --at= --help;;\n", "compdef _bird bird fly dive\n",
			"dive) (( CURRENT == at )) && compadd deep;;\n", "'dive deep') (( CURRENT > at )) && { compadd -S '' -- --meters= --help; return; };;\n",
		},
		"fish": {
			"-a fly -d 'fly away'\n", `-l at -d 'fly at this HOUR, which'\''s early' -r` + "\n", "complete -c fly -l high -d 'fly high'\n",
			"-n '__fish_seen_subcommand_from dive; and not __fish_seen_subcommand_from deep' -f -a 'deep'\n",
			"-n '__fish_seen_subcommand_from dive; and __fish_seen_subcommand_from deep' -l meters",
			"complete -c dive -n '__fish_seen_subcommand_from deep' -l meters",
		},
	} {
		var script bytes.Buffer
		if status := program.Run(t.Context(), []string{"bird", "completion", shell}, &script, io.Discard); status != 0 {
			t.Fatalf("%s: exit status %d", shell, status)
		}
		for _, w := range want {
			if !strings.Contains(script.String(), w) {
				t.Errorf("%s: it lacks %q:\n%s", shell, w, &script)
			}
		}
		if strings.Contains(script.String(), "secret") {
			t.Errorf("%s: it has a hidden flag", shell)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		check := exec.Command(path, "-n")
		check.Stdin = &script
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
}
