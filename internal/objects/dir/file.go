package dir

import (
	"fmt"
	"os"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// File is the contents of one file: objects, or a profile.
type File struct {
	objects.Set
	contents *contents
}

// ReadFile reads a file of objects with the kinds of a table, or of a profile. Its errors are
// [Fault]s.
func ReadFile(path string, table []kinds.Kind) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := parse(path, text, table)
	if err != nil {
		return nil, err
	}
	return &File{c.set, c}, nil
}

// Fault returns an error, with file and line, for a field of one of its objects, if only the user
// of the object can find it.
func (f *File) Fault(of objects.Object, field, format string, args ...any) error {
	if is, ok := f.contents.as[of]; ok {
		return is.fault(field, format, args...)
	}
	return fmt.Errorf("%s: %s: "+format, append([]any{of, field}, args...)...)
}
