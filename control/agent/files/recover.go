package files

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// lockFolder makes this process the only one that uses a folder, until the file is closed or the
// process ends.
func lockFolder(name string) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the models' folder: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another process uses the models' folder: lock of %s: %w", name, err), file.Close())
	}
	return file, nil
}

// recover reads what an earlier process left. It removes what that process was making or removing
// when it ended.
func (s *Store) recover() error {
	for _, folder := range []string{linksDir, trashDir} {
		names, err := childrenOf(s.path(folder))
		if err != nil {
			return err
		}
		for _, name := range names {
			removeTree(s.path(folder, name))
		}
	}
	for _, step := range []func() error{s.recoverEntries, s.recoverPartials, s.recoverModels} {
		if err := step(); err != nil {
			return fmt.Errorf("folder of models: %w", err)
		}
	}
	s.mu.Lock()
	defer s.unlock()
	for _, e := range s.entries {
		if e.users == 0 && (!e.Versioned || e.Bytes == 0) {
			s.evict(e)
		}
	}
	for s.config.Limit > 0 && s.used > s.config.Limit && s.evictOldest(nil) {
	}
	return nil
}

// recoverEntries reads the complete sources.
func (s *Store) recoverEntries() error {
	names, err := childrenOf(s.path(sourcesDir))
	if err != nil {
		return err
	}
	for _, name := range names {
		dir := s.path(sourcesDir, name)
		r, used, err := readRecord(dir)
		e := &entry{record: r, used: used, keys: make(map[string]bool)}
		if err != nil || r.Name != name || !r.survives(s.boot) || !s.intact(e) {
			removeTree(dir)
			continue
		}
		tidy(dir)
		s.entries[name] = e
		s.used += r.Bytes
		if !r.Synced {
			s.syncLater(r)
		}
	}
	return nil
}

// recoverPartials reads the interrupted downloads.
func (s *Store) recoverPartials() error {
	names, err := childrenOf(s.path(partialDir))
	if err != nil {
		return err
	}
	for _, name := range names {
		dir := s.path(partialDir, name)
		r, used, err := readRecord(dir)
		have := int64(0)
		if err == nil && r.Name == name && r.Versioned && r.survives(s.boot) && s.entries[name] == nil {
			have = leftover(dir, &r)
		}
		if have == 0 {
			removeTree(dir)
			continue
		}
		s.partials[name] = &partial{name: name, source: r.Source, bytes: have, used: used}
		s.used += have
	}
	return nil
}

// recoverModels reads the folders of models. It removes those whose source is gone.
func (s *Store) recoverModels() error {
	names, err := childrenOf(s.path(modelsDir))
	if err != nil {
		return err
	}
	for _, file := range names {
		name, isRecord := strings.CutSuffix(file, ".json")
		var r folderRecord
		err := readJSON(s.path(modelsDir, file), &r)
		_, errFolder := os.Lstat(s.path(name))
		e := s.entries[r.Entry]
		if isRecord && err == nil && errFolder == nil && escape(r.ID) == name && e != nil {
			e.users++
			s.models[r.ID] = &model{entry: e, local: s.local(r)}
			continue
		}
		if isRecord && errFolder == nil {
			removeTree(s.path(name))
		}
		if err := os.Remove(s.path(modelsDir, file)); err != nil {
			return err
		}
	}
	return nil
}

// childrenOf returns the names in a folder.
func childrenOf(dir string) ([]string, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := file.Readdirnames(-1)
	return names, errors.Join(err, file.Close())
}
