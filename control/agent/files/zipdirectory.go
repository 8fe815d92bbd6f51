package files

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"io"
	"math"

	"github.com/headgate/headgate/control/agent/fetch"
)

const (
	// maxDirectory is the maximum size in bytes of the central directory of a zip. It is in memory
	// while the zip is unpacked.
	maxDirectory = 16 << 20
	// maxZipEnd is the maximum number of bytes that [zip.NewReader] reads besides the directory: it
	// looks for the end record in the last 65 KiB, and reads ahead.
	maxZipEnd = 128 << 10
)

// zipReader opens a zip whose directory is small enough. [zip.NewReader] alone reads a directory of
// any size, and makes room for as many entries as the zip64 end record claims.
func (u *unpacker) zipReader(file io.ReaderAt, length int64) (*zip.Reader, error) {
	if claimedEntries(file, length) > maxEntries {
		return nil, u.tooMany()
	}
	b := &boundedReaderAt{r: file, left: maxDirectory + maxZipEnd}
	in, err := zip.NewReader(b, length)
	if b.left < 0 {
		return nil, fail(fetch.Unsafe, u.uri, "its directory is larger than %s; upload its files instead", size(maxDirectory))
	}
	if err != nil {
		return nil, err
	}
	if len(in.File) > maxEntries-u.entries {
		return nil, u.tooMany()
	}
	b.left = math.MaxInt64 // the files themselves have other limits
	return in, nil
}

// claimedEntries returns the number of entries in the zip64 end record of a zip; 0 if it has none.
// Other zips claim at most 65535. It finds the record as [zip.NewReader] does: see sections 4.3.14
// to 4.3.16 of PKWARE's APPNOTE.
func claimedEntries(file io.ReaderAt, length int64) uint64 {
	const endLength, locatorLength, maxComment = 22, 20, 1<<16 - 1
	tail := make([]byte, min(length, locatorLength+endLength+maxComment))
	if n, err := file.ReadAt(tail, length-int64(len(tail))); n < len(tail) && err != nil {
		return 0
	}
	at := bytes.LastIndex(tail[:max(0, len(tail)-endLength+4)], []byte("PK\x05\x06"))
	if at < locatorLength || !bytes.HasPrefix(tail[at-locatorLength:], []byte("PK\x06\x07")) {
		return 0
	}
	offset := binary.LittleEndian.Uint64(tail[at-locatorLength+8:])
	record := make([]byte, 40)
	if offset > math.MaxInt64 {
		return 0
	}
	if _, err := file.ReadAt(record, int64(offset)); err != nil || !bytes.HasPrefix(record, []byte("PK\x06\x06")) {
		return 0
	}
	return binary.LittleEndian.Uint64(record[32:])
}

// boundedReaderAt fails after left bytes; then left is negative. It is for one goroutine.
type boundedReaderAt struct {
	r    io.ReaderAt
	left int64
}

func (b *boundedReaderAt) ReadAt(into []byte, offset int64) (int, error) {
	if b.left -= int64(len(into)); b.left < 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return b.r.ReadAt(into, offset)
}
