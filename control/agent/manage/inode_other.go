//go:build !unix

package manage

import "io/fs"

// inode is unknown here.
func inode(fs.FileInfo) uint64 { return 0 }
