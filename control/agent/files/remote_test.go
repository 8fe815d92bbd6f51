package files_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/storage"
)

// memory is storage in memory: sources by their URIs. It counts what is asked of it.
type memory struct {
	mu      sync.Mutex
	sources map[string]*source
	lists   int
	opens   int
	asked   int64 // bytes of all requests
	open    int   // remotes that are not closed
	running int   // requests that are not closed
	most    int   // the most that ran at once
}

// source is one source of a memory.
type source struct {
	content  map[string][]byte
	archives map[string]fetch.Archive
	schema   []byte // the content of schema.json; nil if there is none
	single   bool
	link     string
	version  int  // changes with the content
	bare     bool // without versions and digests
	digests  bool // with digests
	unsized  bool // without sizes
	noRange  bool
	// list and body are called before a listing and a request, without the lock.
	list func(ctx context.Context) error
	body func(ctx context.Context, o fetch.Object, offset int64, b io.ReadCloser) (io.ReadCloser, error)
}

// newMemory returns a memory without sources.
func newMemory() *memory { return &memory{sources: make(map[string]*source)} }

// put adds or changes a source, and returns it.
func (m *memory) put(uri string, s *source) *source {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.sources[uri]; old != nil {
		s.version = old.version + 1
	}
	m.sources[uri] = s
	return s
}

// of returns the source of a URI for Fetch.
func of(uri string) storage.Source { return storage.Source{Scheme: storage.S3, URI: uri, Path: uri} }

// Open is the Open of a Config.
func (m *memory) Open(_ context.Context, src storage.Source) (fetch.Remote, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sources[src.URI]
	if s == nil {
		return nil, &fetch.Error{Reason: fetch.NotFound, Message: src.URI + " does not exist"}
	}
	m.open++
	return &opened{m, src.URI}, nil
}

// opened is one source of a memory, as a Remote.
type opened struct {
	m   *memory
	uri string
}

func (o *opened) get() *source {
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	return o.m.sources[o.uri]
}

func (o *opened) Close() error {
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	o.m.open--
	return nil
}

func (o *opened) List(ctx context.Context) (fetch.Listing, error) {
	s := o.get()
	o.m.mu.Lock()
	o.m.lists++
	o.m.mu.Unlock()
	if s.list != nil {
		if err := s.list(ctx); err != nil {
			return fetch.Listing{}, err
		}
		s = o.get()
	}
	return s.listing(), nil
}

// listing returns the listing of a source.
func (s *source) listing() fetch.Listing {
	l := fetch.Listing{Single: s.single, Link: s.link}
	for _, name := range slices.Sorted(maps.Keys(s.content)) {
		object := s.object(name, s.content[name])
		if a, ok := s.archives[name]; ok {
			object.Archive = &a
		}
		l.Objects = append(l.Objects, object)
	}
	if s.schema != nil {
		object := s.object("schema.json", s.schema)
		l.Schema = &object
	}
	return l
}

func (s *source) object(name string, content []byte) fetch.Object {
	o := fetch.Object{Name: name, Size: int64(len(content))}
	if s.unsized {
		o.Size = -1
	}
	if !s.bare {
		o.Version = fmt.Sprintf("v%d-%d", s.version, len(content))
	}
	if s.digests {
		sum := sha256.Sum256(content)
		o.Digest = "sha256:" + hex.EncodeToString(sum[:])
	}
	return o
}

func (o *opened) Open(ctx context.Context, object fetch.Object, offset, length int64) (io.ReadCloser, error) {
	s := o.get()
	content, ok := s.content[object.Name]
	if !ok && s.schema != nil && object.Name == "schema.json" {
		content = s.schema
	}
	switch {
	case s.noRange && (offset != 0 || length != -1):
		return nil, &fetch.Error{Reason: fetch.NoRange, Message: "no ranges"}
	case object.Version != s.object(object.Name, content).Version:
		return nil, &fetch.Error{Reason: fetch.Changed, Message: o.uri + " changed"}
	}
	end := int64(len(content))
	if length >= 0 {
		end = offset + length
	}
	m := o.m
	m.mu.Lock()
	m.opens++
	m.asked += end - offset
	m.running++
	m.most = max(m.most, m.running)
	m.mu.Unlock()
	var body io.ReadCloser = &reader{Reader: bytes.NewReader(content[offset:end]), ctx: ctx, closed: sync.OnceFunc(func() {
		m.mu.Lock()
		m.running--
		m.mu.Unlock()
	})}
	if s.body == nil {
		return body, nil
	}
	wrapped, err := s.body(ctx, object, offset, body)
	if err != nil {
		_ = body.Close()
	}
	return wrapped, err
}

// reader is a body that ends with its context.
type reader struct {
	io.Reader
	ctx    context.Context
	closed func()
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

func (r *reader) Close() error {
	r.closed()
	return nil
}

// cut is a body that breaks after n bytes.
type cut struct {
	io.ReadCloser
	n int64
}

func (c *cut) Read(p []byte) (int, error) {
	if c.n <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadCloser.Read(p[:min(int64(len(p)), c.n)])
	c.n -= int64(n)
	return n, err
}

// noise returns n bytes that depend on seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = r.Read(b)
	return b
}
