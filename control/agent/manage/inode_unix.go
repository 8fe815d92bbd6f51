//go:build unix

package manage

import (
	"io/fs"
	"syscall"
)

// inode returns the number of a file; 0 if it is unknown.
func inode(info fs.FileInfo) uint64 {
	if is, ok := info.Sys().(*syscall.Stat_t); ok {
		return is.Ino
	}
	return 0
}
