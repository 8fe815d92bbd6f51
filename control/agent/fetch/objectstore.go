package fetch

import (
	"context"
	"errors"
	"strings"

	"github.com/headgate/headgate/control/agent/storage"
)

// objectStore is a path in storage whose objects have keys instead of folders.
type objectStore struct {
	src storage.Source
	// stat returns the object with a key. below returns the objects whose keys begin with a prefix,
	// without those that mark folders.
	stat  func(ctx context.Context, key string) (Object, error)
	below func(ctx context.Context, prefix string) ([]Object, error)
	// marks: an empty object at the path is the mark of a folder, if there are objects below.
	marks bool
}

// list returns the object at the path of the source, or the folder there, and the schema.
func (s objectStore) list(ctx context.Context) (Listing, error) {
	listing, err := s.model(ctx)
	if err != nil || s.src.Schema == "" {
		return listing, err
	}
	schema, err := s.stat(ctx, s.src.Schema)
	if err != nil {
		return Listing{}, ofSchema(s.src, err)
	}
	listing.Schema = &schema
	return listing, nil
}

// model returns the listing without the schema. If the object cannot be read, it may be a folder.
func (s objectStore) model(ctx context.Context) (Listing, error) {
	var empty *Object
	if key := s.src.Path; key != "" && !strings.HasSuffix(key, "/") {
		o, err := s.stat(ctx, key)
		var fault *Error
		switch {
		case err == nil && s.marks && o.Size == 0:
			empty = &o
		case err == nil:
			return single(s.src, o)
		case !errors.As(err, &fault) || fault.Reason != NotFound && fault.Reason != Denied:
			return Listing{}, err
		}
	}
	prefix := prefixOf(s.src)
	objects, err := s.below(ctx, prefix)
	switch {
	case err != nil:
		return Listing{}, err
	case len(objects) == 0 && empty != nil:
		return single(s.src, *empty)
	}
	return folder(s.src, prefix, objects)
}
