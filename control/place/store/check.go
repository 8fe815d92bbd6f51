package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/hash"
)

// bbolt follows offsets in its file, so a corrupt file crashes the process. Therefore check first
// validates the file, in the format of bbolt 1.4 (internal/common: meta.go, page.go, bucket.go).
// The file consists of pages of one size; a larger page also uses the pages after it. The first two
// are meta pages. The valid meta page with the higher transaction number is the current one. It
// names the root page of the tree of buckets, and the page with the list of free pages.
const (
	pageHeader    = 16 // fields: id uint64, kind uint16, elements uint16, overflow pages uint32
	metaSize      = 64 // after the header: magic, version, page size, flags uint32; root, sequence, free list, end, transaction, sum uint64
	elementSize   = 16 // branch element: offset, key uint32, page uint64; leaf element: kind, offset, key, value uint32
	bucketHeader  = 16 // root, sequence uint64; a bucket without a root has its page after this
	magic         = 0xED0CDAED
	layout        = 2
	branchPage    = 0x01
	leafPage      = 0x02
	freePage      = 0x10
	bucketElement = 0x01
	noFreeList    = ^uint64(0)
)

// pages is the state of a check.
type pages struct {
	file []byte
	size uint64 // bytes of a page
	end  uint64 // id of the first page after all used ones
	seen map[uint64]bool
}

// meta is a meta page.
type meta struct{ size, root, free, end, transaction uint64 }

// check returns an error if a file is corrupt. Otherwise bbolt can read and write the file without
// access beyond its end, and each value is valid for its bucket.
func check(file []byte) error {
	m, err := newest(file)
	if err != nil {
		return err
	}
	if m.end > uint64(len(file))/m.size {
		return fmt.Errorf("it has %d bytes, and had %d", len(file), m.end*m.size)
	}
	p := &pages{file, m.size, m.end, map[uint64]bool{0: true, 1: true}}
	if err := p.freeList(m.free); err != nil {
		return err
	}
	return p.tree(m.root, new([]byte), func(kind uint32, name, value []byte) error {
		if kind != bucketElement {
			return fmt.Errorf("%q is in no bucket", name)
		}
		return p.bucket(value, func(kind uint32, key, value []byte) error {
			if kind != 0 {
				return fmt.Errorf("%s %q is a bucket", name, key)
			}
			if err := decode(name, value); err != nil {
				return fmt.Errorf("%s %q: %w", name, key, err)
			}
			return nil
		})
	})
}

// decode decodes a value of a bucket.
func decode(bucket, value []byte) error {
	switch string(bucket) {
	case string(models):
		return json.Unmarshal(value, new(v1alpha1.Model))
	case string(copies):
		return json.Unmarshal(value, new(Copy))
	case string(runtimes):
		return json.Unmarshal(value, new(Runtime))
	case string(statuses):
		return json.Unmarshal(value, new(Status))
	case string(vmodels):
		return json.Unmarshal(value, new(v1alpha1.VModel))
	case string(drains):
		return json.Unmarshal(value, new(Drain))
	case string(moves):
		return json.Unmarshal(value, new(VModelStatus))
	}
	return nil // a bucket of a later version
}

// newest returns the current meta page: the valid one with the higher transaction number.
func newest(file []byte) (best meta, err error) {
	err = errors.New("it is not a state file of control")
	for _, offset := range []int{0, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10} { // possible page sizes
		if m, ok := readMeta(file, offset); ok && (err != nil || m.transaction > best.transaction) {
			best, err = m, nil
		}
	}
	return best, err
}

func readMeta(file []byte, offset int) (m meta, ok bool) {
	if len(file) < offset+pageHeader+metaSize {
		return m, false
	}
	b := file[offset+pageHeader:]
	ok = u32(b) == magic && u32(b[4:]) == layout && u64(b[metaSize-8:]) == hash.Of(b[:metaSize-8])
	m = meta{uint64(u32(b[8:])), u64(b[16:]), u64(b[32:]), u64(b[40:]), u64(b[48:])}
	return m, ok && m.size >= pageHeader+metaSize && (offset == 0 || offset == int(m.size))
}

// page returns a page with its overflow pages, and marks them as used.
func (p *pages) page(id uint64) ([]byte, error) {
	if id >= p.end {
		return nil, fmt.Errorf("page %d is beyond the last one, %d", id, p.end-1)
	}
	b := p.file[id*p.size:]
	behind := uint64(u32(b[12:]))
	if u64(b) != id || behind >= p.end-id {
		return nil, fmt.Errorf("page %d is not itself", id)
	}
	for part := id; part <= id+behind; part++ {
		if p.seen[part] {
			return nil, fmt.Errorf("page %d is in two places", part)
		}
		p.seen[part] = true
	}
	return b[:(behind+1)*p.size], nil
}

// freeList checks the list of free pages, and marks them as used.
func (p *pages) freeList(id uint64) error {
	if id == noFreeList {
		return nil
	}
	b, err := p.page(id)
	if err != nil {
		return err
	}
	n, list := uint64(u16(b[10:])), b[pageHeader:]
	if n == 0xFFFF { // the real number follows
		n, list = u64(list), list[8:]
	}
	if u16(b[8:]) != freePage || n > uint64(len(list))/8 {
		return fmt.Errorf("page %d is not the list of free pages", id)
	}
	for ; n > 0; n, list = n-1, list[8:] {
		free := u64(list)
		if free >= p.end || p.seen[free] {
			return fmt.Errorf("page %d is among the free ones and in use", free)
		}
		p.seen[free] = true
	}
	return nil
}

// bucket calls visit for all entries of a bucket.
func (p *pages) bucket(value []byte, visit func(kind uint32, key, value []byte) error) error {
	switch {
	case len(value) < bucketHeader:
		return errors.New("a bucket is cut")
	case u64(value) != 0:
		return p.tree(u64(value), new([]byte), visit)
	case len(value) < bucketHeader+pageHeader:
		return errors.New("a bucket is cut")
	}
	return p.elements(value[bucketHeader:], new([]byte), visit)
}

// tree calls visit for all leaf elements below a page, in the order of keys. *last is the key
// before them, or nil.
func (p *pages) tree(id uint64, last *[]byte, visit func(kind uint32, key, value []byte) error) error {
	b, err := p.page(id)
	if err != nil {
		return err
	}
	if err := p.elements(b, last, visit); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// elements calls visit for all leaf elements on or below a page, in the order of keys. *last is the
// key before them, or nil. Keys must increase. The first key of a page must equal the key that its
// branch has for the page, since bbolt finds the page by that key.
func (p *pages) elements(b []byte, last *[]byte, visit func(kind uint32, key, value []byte) error) error {
	kind, n := u16(b[8:]), int(u16(b[10:]))
	if kind != leafPage && kind != branchPage || kind == branchPage && n == 0 || pageHeader+n*elementSize > len(b) {
		return errors.New("it is no page of a tree")
	}
	for i := range n {
		e := b[pageHeader+i*elementSize:]
		offset, keyLength, valueLength := u32(e), u32(e[4:]), uint32(0)
		if kind == leafPage {
			offset, keyLength, valueLength = u32(e[4:]), u32(e[8:]), u32(e[12:])
		}
		if uint64(offset)+uint64(keyLength)+uint64(valueLength) > uint64(len(e)) || keyLength == 0 {
			return errors.New("an element reaches beyond its page")
		}
		key := e[offset:][:keyLength]
		order := bytes.Compare(*last, key)
		if i > 0 && order >= 0 || i == 0 && order != 0 && *last != nil {
			return errors.New("its keys are out of order")
		}
		*last = key
		var err error
		if kind == leafPage {
			err = visit(u32(e), key, e[offset+keyLength:][:valueLength])
		} else {
			err = p.tree(u64(e[8:]), last, visit)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func u16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }
func u32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
func u64(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
