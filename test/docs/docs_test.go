//go:build linux

// Package docs runs the commands in the documentation.
package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pages are the pages whose sh blocks are run. The blocks of a page share one shell session. A
// block that cannot run has a mark with the reason.
var pages = []string{"README.md", "docs/placement.md", "docs/sharing.md", "docs/storage.md"}

// limit is the maximum time of each block.
const limit = time.Minute

func TestPages(t *testing.T) {
	if testing.Short() {
		t.Skip("short runs start no programs")
	}
	needs(t)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	clone := copied(t, root)
	for _, page := range pages {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(root, page))
			if err != nil {
				t.Fatal(err)
			}
			all, err := blocks(string(text))
			if err != nil {
				t.Fatal(err)
			}
			s := start(t, root, clone)
			ran := 0
			for _, b := range all {
				if b.notRun != "" {
					t.Logf("line %d is not run: %s", b.line, b.notRun)
					continue
				}
				ran++
				if err := s.run(b, limit); err != nil {
					t.Fatalf("%s, %v", page, err)
				}
			}
			if ran == 0 {
				t.Error("the page has no commands that run")
			}
		})
	}
}

// A session reports failed commands and wrong output. It keeps its state from one block to the
// next.
func TestSession(t *testing.T) {
	needs(t)
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, ".cache"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := start(t, root, t.TempDir())
	for _, c := range []struct {
		block
		want string // expected error; empty for none
	}{
		{block{commands: "x=7 && mkdir -p a && cd a && cat # which gets no input"}, ""},
		{block{commands: "pwd; echo x is $x", prints: "…/a\nx is 12"}, ""},
		{block{commands: "echo one; echo two", prints: "two"}, ""},
		{block{commands: "echo one; echo two", prints: "two\none"}, "this line is not printed:\none"},
		{block{commands: "echo three", prints: "four"}, "this line is not printed:\nfour"},
		{block{commands: "echo why >&2; false"}, "status 1:\nwhy"},
		{block{commands: "(exit 3)\necho all is well", prints: "all is well"}, "status 3"},
		{block{commands: "if false; then false; fi"}, ""},
		{block{commands: "while sleep 0.01; do echo $((n += 1)) is next; done", prints: "3 is next", endless: true}, ""},
		{block{commands: "echo it ends", prints: "it goes on", endless: true}, "this line is not printed:\nit goes on"},
		{block{commands: "sleep 60", endless: true}, "need a block"},
		{block{commands: "ip -o link | wc -l", prints: "1"}, ""},
		{block{commands: "ls ../.. >/dev/null; echo still x $x", prints: "still x 7"}, ""},
	} {
		err := s.run(c.block, limit)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.commands, err, c.want)
		}
	}
	if err := s.run(block{commands: "sleep 60"}, 10*time.Millisecond); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("commands that do not end: %v", err)
	}
}
