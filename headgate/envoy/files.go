package envoy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"
)

// source is a set of files that is converted into one file for Envoy. Envoy reads this file again
// when it is replaced.
type source struct {
	what   string   // for log lines
	paths  []string // of the files
	target string   // path of the file for Envoy
	// convert returns the content for Envoy. Its errors do not contain the files' contents.
	convert func(contents [][]byte) ([]byte, error)

	// rejected returns how many updates the current Envoy has rejected; nil if nothing counts them.
	rejected func() int

	seen    [][]byte // contents when they were last read
	decided bool     // seen is in effect, or was rejected
	fault   string   // the last error, which is logged once
	applied bool     // the last look applied a change
	before  int      // rejected() before that
}

// load reads the files for the first time.
func (s *source) load() error {
	contents, err := s.read()
	if err != nil {
		return err
	}
	s.seen, s.decided = contents, true
	return s.apply(contents)
}

func (s *source) read() ([][]byte, error) {
	contents := make([][]byte, len(s.paths))
	for i, path := range s.paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		contents[i] = text
	}
	return contents, nil
}

func (s *source) apply(contents [][]byte) error {
	text, err := s.convert(contents)
	if err != nil {
		return err
	}
	return replaceFile(s.target, text)
}

// look reads the files, and applies a change when it has read the same contents twice, since a file
// may be written in place. If the files are invalid, the last valid ones stay in effect.
func (s *source) look(log *slog.Logger) {
	if s.applied && s.rejected != nil && s.rejected() > s.before {
		log.Error("Envoy rejects the changed files, and its log contains the reason; Envoy keeps the last valid ones until it exits", "what", s.what)
	}
	s.applied = false
	contents, err := s.read()
	if err == nil {
		same := len(s.seen) == len(contents)
		for i := range contents {
			same = same && bytes.Equal(s.seen[i], contents[i])
		}
		if !same {
			s.seen, s.decided = contents, false
			return
		}
		if s.decided {
			return
		}
		if s.rejected != nil {
			s.before = s.rejected()
		}
		if err = s.apply(contents); err == nil {
			s.decided, s.applied, s.fault = true, true, ""
			log.Info("Envoy gets the changed files", "what", s.what)
			return
		}
		_, unwritten := errors.AsType[*os.PathError](err)
		s.decided = !unwritten // a full disk may have room at the next call
	}
	if text := err.Error(); text != s.fault {
		s.fault = text
		log.Error("cannot use the changed files; the last valid ones stay in effect", "what", s.what, "err", err)
	}
}

// follow applies changes of the files until ctx ends.
func follow(ctx context.Context, sources []*source, interval time.Duration, log *slog.Logger) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for _, s := range sources {
				s.look(log)
			}
		}
	}
}

// replaceFile writes a file that only this user can read, and renames it into place.
func replaceFile(path string, text []byte) error {
	part := path + ".part"
	if err := os.Remove(part); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // fails if somebody else has made it
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// privateDir makes a folder to which only this user can write. It returns an error if other users
// can write to an existing folder, since they could read or replace the files with keys.
func privateDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner := -1
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = int(stat.Uid)
	}
	switch {
	case !info.IsDir():
		return errors.New("it is not a folder: remove it")
	case owner != os.Geteuid():
		return fmt.Errorf("it belongs to the user with the id %d, who could read the keys: remove it, or name another folder", owner)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("other users can write to it (%v), and so read the keys: run chmod 700, or name another folder", info.Mode())
	}
	return nil
}
