package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Lock holds a file, of which one process at a time may have hold, until the returned function is called or the process ends.
// It makes the file and its folder.
func Lock(path string) (unlock func(), err error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // closing unlocks
}

// Held says which process has hold of a file that [TryLock] was to lock.
type Held struct {
	// PID is that of the process, 0 if it has not said so yet.
	PID int
}

func (h Held) Error() string { return fmt.Sprintf("process %d holds the lock", h.PID) }

// TryLock is [Lock] for those who do not wait: where another process has hold of the file, the error is a [Held].
func TryLock(path string) (unlock func(), err error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		text, err := os.ReadFile(path)
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text))) // nothing, between the lock and the word
		return nil, errors.Join(Held{pid}, err, f.Close())
	case err != nil:
		return nil, errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Truncate(0), write(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// open opens a file for a lock, which no process that is started inherits.
func open(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
}

func write(f *os.File, text string) error {
	_, err := f.WriteString(text)
	return err
}
