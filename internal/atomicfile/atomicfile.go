// Package atomicfile writes files in one step.
package atomicfile

import (
	"io/fs"
	"os"
)

// Write writes a file in place of another one, if there is one: a reader sees the old content or
// the new one, also if this process is killed. It does not sync. Only one call may write a file at
// a time, since all write PATH.part first, which a failed call may leave.
func Write(path string, content []byte, mode fs.FileMode) error {
	part := path + ".part"
	if err := os.WriteFile(part, content, mode); err != nil {
		return err
	}
	return os.Rename(part, path)
}
