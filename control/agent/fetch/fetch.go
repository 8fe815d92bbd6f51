// Package fetch reads the files of models from storage. [Open] returns the [Remote] of a source;
// each scheme has a file or a package of its own, in which a maintained library does the transfer.
// Package files stores what a Remote reads.
package fetch

import (
	"context"
	"io"
)

// Object is one file of a model, or an archive of several.
type Object struct {
	// Name is the slash-separated path of the file below the model's folder. It is not checked:
	// whoever writes files must refuse names that are absolute or leave the folder.
	Name string
	// Size is the size in bytes; -1 if the server does not report it.
	Size int64
	// Version is a strong ETag, a generation or a commit: it changes with the bytes. It is empty if
	// the server has none; then an interrupted transfer starts anew.
	Version string
	// Digest is the expected digest of the bytes, "sha256:HEX"; empty if unknown.
	Digest string
	// Archive means that the object is an archive to unpack instead of a file to store; nil for a
	// file.
	Archive *Archive
}

// Archive describes how to unpack an object.
type Archive struct {
	// Compression is "", "gzip" or "zstd". The archive itself is a tar.
	Compression string
	// Prefix is the folder in the archive whose content belongs to the model, such as "models/".
	// Other entries are skipped.
	Prefix string
}

// Listing is what a source consists of.
type Listing struct {
	// Objects are the files. A single object has the last element of its path as name.
	Objects []Object
	// Single means that the source is one object, not a folder.
	Single bool
	// Schema is the schema file, named by its base name; nil if the source names none.
	Schema *Object
	// Link is a folder or file on this machine that holds the model already, such as a mounted
	// claim. Then nothing is copied, and Objects is empty.
	Link string
}

// Remote is one source, opened. Its methods are safe for concurrent use, end with their contexts,
// and return an *[Error] if the server did not do what was requested.
type Remote interface {
	// List returns the files. It fails with Empty if there are none.
	List(ctx context.Context) (Listing, error)
	// Open reads length bytes of an object from offset; a length of -1 reads to the end. It fails
	// with Changed if the object no longer has the version of the listing. Servers without ranges
	// fail with NoRange unless offset is 0 and length is -1.
	Open(ctx context.Context, o Object, offset, length int64) (io.ReadCloser, error)
	// Close releases connections.
	Close() error
}

// Reason is why a server did not do what was requested.
type Reason string

const (
	NotFound Reason = "NotFound" // the bucket, repository, object or claim does not exist
	Denied   Reason = "Denied"   // credentials are missing, wrong or insufficient, or the repository is gated
	Busy     Reason = "Busy"     // 429, 5xx, or a broken connection: a later attempt may succeed
	Changed  Reason = "Changed"  // the object changed since it was listed
	Corrupt  Reason = "Corrupt"  // the bytes do not have the expected digest or size
	Full     Reason = "Full"     // the disk is full, or the model is larger than the limit
	Unsafe   Reason = "Unsafe"   // a name leaves the folder, or an archive holds what may not be unpacked
	Empty    Reason = "Empty"    // the source has no file
	Invalid  Reason = "Invalid"  // the URI or the configuration is wrong, or the URI is not allowed
	NoRange  Reason = "NoRange"  // the server does not serve parts of an object
)

// Error is why a source cannot be read. Its message is one sentence that names the URI without
// credentials and what to do; it holds no secret.
type Error struct {
	Reason  Reason
	Message string
	// RetryAfter is the pause that the server asks for, in seconds; 0 if it names none.
	RetryAfter int
}

func (e *Error) Error() string { return e.Message }
