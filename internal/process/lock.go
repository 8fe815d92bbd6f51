package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Lock locks a file and waits if another process holds the lock. The lock ends when unlock is
// called or the process ends. Lock creates the file and its folder if they are missing.
func Lock(path string) (unlock func(), err error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // closing the file releases the lock
}

// Held is the error of [TryLock] if another process holds the lock.
type Held struct {
	// PID is the id of the process that holds the lock; 0 if it has not written its id yet.
	PID int
}

func (h Held) Error() string { return fmt.Sprintf("process %d holds the lock", h.PID) }

// TryLock is [Lock] without waiting. If another process holds the lock, the error is a [Held].
//
// The holder may remove the file before it unlocks it.
func TryLock(path string) (unlock func(), err error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	switch err := lockNow(f); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		text, err := os.ReadFile(path)
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text))) // the file is empty just after it was locked
		return nil, errors.Join(Held{pid}, err, f.Close())
	case err != nil:
		return nil, errors.Join(err, f.Close())
	}
	if !isAt(f, path) { // the last holder removed the file after it was opened here
		_ = f.Close()
		return TryLock(path)
	}
	if err := errors.Join(f.Truncate(0), write(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// lockNow locks a file. It does not wait for a process that holds the lock, but for callers of
// [Locked], which hold a shared lock for a moment.
func lockNow(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil {
			return err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_UN); err != nil { // several callers must not wait for each other
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// Locked reports whether a process holds the lock of a file. It does not change the file.
func Locked(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// isAt reports whether an open file is the one at a path.
func isAt(f *os.File, path string) bool {
	opened, err := f.Stat()
	there, errThere := os.Stat(path)
	return err == nil && errThere == nil && os.SameFile(opened, there)
}

// open opens a file for locking. It refuses a link, because the link's target would be truncated.
// Child processes do not inherit the file.
func open(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o644)
}

func write(f *os.File, text string) error {
	_, err := f.WriteString(text)
	return err
}
