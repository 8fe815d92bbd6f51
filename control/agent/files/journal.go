package files

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"github.com/headgate/headgate/control/agent/fetch"
)

// part is a range of an object that one request reads.
type part struct {
	index  int   // in the journal
	object int   // in record.targets
	offset int64 // in the object
	length int64 // in bytes; -1 if the size of the object is unknown
	whole  bool  // the only part of its object
}

// divide returns the parts of a source, in the order of its objects. An object without a version is
// one part, because parts could be of different versions.
func divide(objects []fetch.Object, partSize int64) (parts []part) {
	add := func(object int, offset, length int64, whole bool) {
		parts = append(parts, part{index: len(parts), object: object, offset: offset, length: length, whole: whole})
	}
	for i, o := range objects {
		if o.Size <= partSize || partSize <= 0 || versionOf(o) == "" {
			add(i, 0, max(o.Size, -1), true)
			continue
		}
		for offset := int64(0); offset < o.Size; offset += partSize {
			add(i, offset, min(partSize, o.Size-offset), false)
		}
	}
	return parts
}

// maxParts is the maximum number of parts of a source: 2 TiB with the usual size of a part. A
// server may announce any size, and the list of parts is in memory.
const maxParts = 1 << 18

// parts returns about how many parts the objects have: at most one fewer for each, and at most
// maxParts+1.
func parts(objects []fetch.Object, partSize int64) (n int64) {
	for _, o := range objects {
		n = min(n+min(max(o.Size, 0)/partSize, maxParts), maxParts+1)
	}
	return n
}

// journal records how many bytes of each part are in its file, so that a later process can resume
// the download. Each part has one writer at a time. A record is written after the bytes that it
// counts. If the process is killed, the kernel still writes both. If the machine fails, the next
// process discards the whole download.
type journal struct {
	file *os.File
	have []int64 // bytes of each part, which begin at its offset; ^n if the part is complete and has n
}

const journalFile = "journal"

// openJournal opens the journal of a download with n parts, or makes one.
func openJournal(name string, n int) (*journal, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	j := &journal{file: file, have: make([]int64, n)}
	text, err := io.ReadAll(io.LimitReader(file, int64(8*n)))
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	for i := range len(text) / 8 {
		j.have[i] = int64(binary.LittleEndian.Uint64(text[8*i:]))
	}
	return j, nil
}

// done reports whether part i is complete.
func (j *journal) done(i int) bool { return j.have[i] < 0 }

// bytes returns the number of bytes of part i that are in its file.
func (j *journal) bytes(i int) int64 {
	if j.have[i] < 0 {
		return ^j.have[i]
	}
	return j.have[i]
}

// sum returns the number of bytes of all parts.
func (j *journal) sum() (n int64) {
	for i := range j.have {
		n += j.bytes(i)
	}
	return n
}

// set records that part i has n bytes, and whether that is all.
func (j *journal) set(i int, n int64, done bool) error {
	j.have[i] = n
	if done {
		j.have[i] = ^n
	}
	_, err := j.file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(j.have[i])), int64(8*i))
	return err
}

func (j *journal) close() error { return j.file.Close() }
