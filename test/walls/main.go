// Command walls lists the packages whose tests need the race detector, or those whose tests do not.
// Its own tests enforce Headgate's architecture: which package may use what, and why. A failing
// test names the place, the rule and its reason. docs/architecture.md describes the rules; the
// tables are in tables.go.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	race := flag.Bool("race", false, "list the packages to test with the race detector, instead of those to test without it")
	root := flag.String("root", ".", "the `FOLDER` of the module")
	flag.Parse()
	if err := list(os.Stdout, *root, *race); err != nil {
		fmt.Fprintln(os.Stderr, "walls:", err)
		os.Exit(1)
	}
}

// list writes the packages with tests, one per line. If race is true, it writes those that must run
// with the race detector, otherwise those that must run without it.
func list(w io.Writer, root string, race bool) error {
	t, err := read(os.DirFS(root))
	if err != nil {
		return err
	}
	paths := sequential(t)
	if race {
		paths = concurrent(t)
	}
	for _, path := range paths {
		if _, err := fmt.Fprintln(w, "./"+path); err != nil {
			return err
		}
	}
	return nil
}
