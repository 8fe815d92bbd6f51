package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tree is a work tree of Git without changes.
type tree struct {
	root   string
	commit string
	time   time.Time // when the commit was made: the time of all files
}

// readTree returns the tree at root. A tree with changes is an error, since its programs would not
// be those of a commit.
func readTree(ctx context.Context, root string) (tree, error) {
	changed, err := git(ctx, root, "status", "--porcelain")
	if err != nil {
		return tree{}, err
	}
	if changed != "" {
		return tree{}, fmt.Errorf("the tree has changes: commit or stash them first, so that the release is that of a commit:\n%s", changed)
	}
	out, err := git(ctx, root, "log", "-1", "--format=%H %ct")
	if err != nil {
		return tree{}, err
	}
	commit, seconds, _ := strings.Cut(out, " ")
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return tree{}, fmt.Errorf("git log: %w", err)
	}
	return tree{root, commit, time.Unix(at, 0).UTC()}, nil
}

// files returns the files of the tree in a folder that pass keep, by their paths below the folder.
// A link becomes what it points to.
func (t tree) files(ctx context.Context, folder string, keep func(path string) bool) (members, error) {
	out, err := git(ctx, t.root, "ls-files", "-z", "--stage", "--", folder)
	if err != nil {
		return nil, err
	}
	all := members{}
	for entry := range strings.SplitSeq(strings.TrimRight(out, "\x00"), "\x00") {
		mode, path, found := strings.Cut(entry, "\t")
		if !found || !keep(path) {
			continue
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return nil, err
		}
		if err := all.add(filepath.ToSlash(name), filepath.Join(t.root, path), strings.HasPrefix(mode, "100755")); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// add adds a file, or all files in a folder.
func (m members) add(name, path string, executable bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		content, err := os.ReadFile(path)
		m[name] = member{content: content, executable: executable}
		return err
	}
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		err = errors.Join(err, m.add(name+"/"+e.Name(), filepath.Join(path, e.Name()), false))
	}
	return err
}

// git returns the output of a command of Git.
func git(ctx context.Context, root string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...)
	var failure strings.Builder
	command.Stderr = &failure
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(failure.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
