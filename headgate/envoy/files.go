package envoy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
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

	seen    [][]byte // contents when they were last read
	decided bool     // seen is in effect, or was rejected
	fault   string   // the last error, which is logged once
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
		if err = s.apply(contents); err == nil {
			s.decided, s.fault = true, ""
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
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return err
	}
	return os.Rename(part, path)
}
