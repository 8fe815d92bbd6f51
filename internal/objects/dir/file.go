package dir

import (
	"fmt"
	"os"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// File is what one file holds, by itself: objects, or a profile.
type File struct {
	objects.Set
	contents *contents
}

// ReadFile reads a file of objects of the kinds of a table, or of a profile. What is wrong with it is a [Fault].
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

// Fault is what is wrong with a field of one of its objects, which only who uses it finds: with file and line, where the object is in the file.
func (f *File) Fault(of objects.Object, field, format string, args ...any) error {
	if is, ok := f.contents.as[of]; ok {
		return is.fault(field, format, args...)
	}
	return fmt.Errorf("%s: %s: "+format, append([]any{of, field}, args...)...)
}
