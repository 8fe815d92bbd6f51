package files

import "path/filepath"

// Empty reports whether nothing is left of sources and models, neither in memory nor on disk.
func (s *Store) Empty() bool {
	s.mu.Lock()
	defer s.unlock()
	for _, folder := range []string{sourcesDir, partialDir, modelsDir, linksDir, trashDir} {
		if names, err := childrenOf(s.path(folder)); err != nil || len(names) > 0 {
			return false
		}
	}
	return len(s.models)+len(s.entries)+len(s.partials)+len(s.flights) == 0 && s.used == 0 && len(s.slots) == 0
}

// Measured returns the bytes on disk of complete sources and interrupted downloads. They are those
// that count, if nothing runs.
func (s *Store) Measured() (bytes int64) {
	s.mu.Lock()
	defer s.unlock()
	for name := range s.entries {
		bytes += diskBytes(s.path(sourcesDir, name, "files")) + diskBytes(s.path(sourcesDir, name, "schema"))
	}
	for _, p := range s.partials {
		bytes += p.bytes
	}
	return bytes
}

// EvictAll evicts everything that nobody uses.
func (s *Store) EvictAll() { s.makeRoom(nil, s.Used()+1) }

// Wait waits for all goroutines of a Store.
func (s *Store) Wait() { s.tasks.Wait() }

// Sources returns the folder of each complete source.
func (s *Store) Sources() (dirs []string) {
	s.mu.Lock()
	defer s.unlock()
	for name := range s.entries {
		dirs = append(dirs, s.path(sourcesDir, name))
	}
	return dirs
}

// Synced returns the number of sources whose files survive a failure of the machine.
func (s *Store) Synced() (n int) {
	for _, dir := range s.Sources() {
		if r, _, err := readRecord(dir); err == nil && r.Synced {
			n++
		}
	}
	return n
}

// Unsync makes the record of each source say that it was written before the machine last started.
func (s *Store) Unsync() error {
	for _, dir := range s.Sources() {
		r, _, err := readRecord(dir)
		if err != nil {
			return err
		}
		r.Boot, r.Synced = "an earlier one", false
		if err := writeJSON(filepath.Join(dir, recordFile), r); err != nil {
			return err
		}
	}
	return nil
}

var (
	Escape    = escape
	SafeNames = safeNames
	Divide    = divide
	Size      = size
)

// Waiters returns the number of callers that wait for downloads.
func Waiters(s *Store) (n int) {
	s.mu.Lock()
	defer s.unlock()
	for _, f := range s.flights {
		n += f.waiters
	}
	return n
}

// HangAt makes links to a mounted path wait. It returns a channel that receives a value when a link
// waits. Closing hung lets it go on. It must be called before the first fetch.
func (s *Store) HangAt(mounted string, hung <-chan struct{}) <-chan struct{} {
	waits := make(chan struct{}, 10)
	s.mount = func(folder, at string) (int64, error) {
		if at == mounted {
			waits <- struct{}{}
			<-hung
		}
		return linkMount(folder, at)
	}
	return waits
}
