// Package fetch reads the files of models from storage. [Open] returns the [Remote] of a source;
// each scheme has a file or a package of its own, in which a maintained library does the transfer.
// Package files stores what a Remote reads.
package fetch

import (
	"context"
	"crypto/md5" //nolint:gosec // servers name it
	"crypto/sha256"
	"hash"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"strings"
)

// Object is one file of a model, or an archive of several.
type Object struct {
	// Name is the slash-separated path of the file below the model's folder. It is not checked: a
	// caller that writes files must refuse names that are absolute or lead out of the folder.
	Name string
	// Key is the name of the object at its server. Only the Remote that listed it reads it.
	Key string
	// Size is the size in bytes; -1 if the server does not report it.
	Size int64
	// Version is a strong ETag, a generation or a commit: it changes with the bytes. It is empty if
	// the server has none; then an interrupted transfer starts anew.
	Version string
	// Digest is the expected digest of all bytes: "sha256:", "md5:" or "crc32c:", then hexadecimal
	// digits; empty if unknown. [NewHash] computes it.
	Digest string
	// Archive means that the object is an archive to unpack instead of a file to store; nil for a
	// file.
	Archive *Archive
}

// Archive describes how to unpack an object.
type Archive struct {
	// Format is "tar" or "zip". A zip must be stored before it is unpacked, because its directory
	// is at its end. Files at the root of an archive are files of the model.
	Format string
	// Compression is that of a tar: "", "gzip", "bzip2" or "zstd".
	Compression string
	// Prefix is the folder in the archive whose content belongs to the model, such as "models/".
	// Other entries are skipped.
	Prefix string
	// Layer means that the archive is a layer of an image. Layers are unpacked in the listed order,
	// because later ones replace and remove what earlier ones stored (see [Archive.Entry]).
	Layer bool
}

// Listing is what a source consists of.
type Listing struct {
	// Objects are the files. A single object has the last element of its path as name.
	Objects []Object
	// Single means that the source is one object, not a folder. An archive that is to be unpacked
	// is a folder.
	Single bool
	// Schema is the schema file, named by its base name; nil if the source names none.
	Schema *Object
	// Link is a folder or file on this machine that already contains the model, such as a mounted
	// claim. Then Objects is empty, and the model is not copied.
	Link string
}

// Remote is an open source. Its methods are safe for concurrent use and end with their contexts.
// They return an *[Error] if a request fails.
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

// Options are what an agent sets for all its sources.
type Options struct {
	// Dial connects to a server. Nil is [Dial], which refuses link-local addresses.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Allow are the prefixes of permitted URIs; empty permits all.
	Allow []string
	// ClaimsDir is the folder in which each mounted claim has a folder of its name; empty if none
	// is mounted.
	ClaimsDir string
	// HubEndpoint is the URL of the Hub; empty is https://huggingface.co.
	HubEndpoint string
	// HubToken is the token for HubEndpoint, and for no other server. It is secret.
	HubToken string
	// Log receives messages about connections, for example that the pod has no cloud identity. Nil
	// discards them.
	Log *slog.Logger
}

// Reason classifies an [Error].
type Reason string

const (
	NotFound Reason = "NotFound" // the bucket, repository, object or claim does not exist
	Denied   Reason = "Denied"   // credentials are missing, wrong or insufficient, or the repository is gated
	Busy     Reason = "Busy"     // 429, 5xx, or a broken connection: a later attempt may succeed
	Changed  Reason = "Changed"  // the object changed since it was listed
	Corrupt  Reason = "Corrupt"  // the bytes do not have the expected digest or size
	Full     Reason = "Full"     // the disk is full, or the model is larger than the limit
	Unsafe   Reason = "Unsafe"   // a name leads out of the folder, or an archive contains a forbidden entry
	Empty    Reason = "Empty"    // the source has no file
	Invalid  Reason = "Invalid"  // the URI or the configuration is wrong, or the URI is not allowed
	NoRange  Reason = "NoRange"  // the server does not serve parts of an object
)

// Error is the reason why a source cannot be read. Its message is one sentence with the URI, the
// cause and what to do. It contains no secret.
type Error struct {
	Reason  Reason
	Message string
	// RetryAfter is the server's Retry-After, in seconds; 0 if the answer has none.
	RetryAfter int
}

func (e *Error) Error() string { return e.Message }

// NewHash returns the hash function of an [Object]'s Digest, and the hexadecimal digits to expect.
// It returns nil if the digest is empty or of an unknown kind.
func NewHash(digest string) (h hash.Hash, want string) {
	kind, want, _ := strings.Cut(digest, ":")
	switch kind {
	case "sha256":
		h = sha256.New()
	case "md5":
		h = md5.New() //nolint:gosec // it detects broken transfers; it is no protection against the server
	case "crc32c":
		h = crc32.New(crc32.MakeTable(crc32.Castagnoli))
	}
	return h, want
}
