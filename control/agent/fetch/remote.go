package fetch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/headgate/headgate/control/agent/storage"
)

// Open returns the Remote of a source. It checks the source against Options.Allow. The error is an
// *[Error], or that of a context that has ended.
func Open(ctx context.Context, src storage.Source, opts Options) (Remote, error) {
	if err := storage.Allowed(src, opts.Allow); err != nil {
		return nil, &Error{Reason: Invalid, Message: err.Error()}
	}
	if opts.Dial == nil {
		opts.Dial = Dial
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	open := map[storage.Scheme]func(context.Context, storage.Source, Options) (Remote, error){
		storage.S3: openS3, storage.GCS: openGCS, storage.Azure: openAzure, storage.Web: openWeb, storage.Claim: openClaim,
		storage.Hub: openHub, storage.OCI: openImage,
	}[src.Scheme]
	if open == nil {
		return nil, failure(src, Invalid, "this agent fetches nothing from storage of this kind; use another source")
	}
	return open(ctx, src, opts)
}

// InvalidError returns the error of a load call that [storage.Resolve] rejects.
func InvalidError(err error) *Error { return &Error{Reason: Invalid, Message: err.Error()} }

// failure returns an Error about a source: its URI, what happened, and after a semicolon what to
// do. The arguments must not be secret; [described] makes words of errors.
func failure(src storage.Source, reason Reason, format string, arguments ...any) *Error {
	return &Error{Reason: reason, Message: storage.Redact(src.URI) + ": " + fmt.Sprintf(format, arguments...)}
}

// credentials returns words for the credentials of a source, for messages.
func credentials(src storage.Source) string {
	switch {
	case src.Entry != "":
		return fmt.Sprintf("the storage-config entry %q", src.Entry)
	case src.HasSecrets():
		return "the credentials in the model's source or parameters"
	}
	return "the pod's own identity or anonymous access"
}

// ofStatus returns the Error for an HTTP status that is no success. code is the server's own code
// of the error, such as NoSuchKey, or empty.
func ofStatus(src storage.Source, status int, code string, retryAfter int) *Error {
	shown := strconv.Itoa(status)
	if code = safeCode(code); code != "" {
		shown += " " + code
	}
	var e *Error
	switch {
	case status == 401 || status == 403 || status == 407:
		e = failure(src, Denied, "the server denies access with %s (%s); correct the credentials or their permissions",
			credentials(src), shown)
	case status == 404 || status == 410:
		e = failure(src, NotFound, "the server has no such object (%s); correct the source, or upload the model", shown)
	case status == 409 || status == 412:
		e = failure(src, Changed, "the object has changed since it was listed (%s); the load starts anew", shown)
	case status == 408 || status == 425 || status == 429 || status >= 500:
		e = failure(src, Busy, "the server is busy or failing (%s); the load is tried again", shown)
		e.RetryAfter = retryAfter
	case status >= 300 && status < 400:
		e = failure(src, Invalid, "the server answers with a redirect that is not followed (%s); correct the source", shown)
	default:
		e = failure(src, Invalid, "the server rejects the request (%s); correct the source", shown)
	}
	return e
}

// safeCode returns a server's code of an error if it looks like one: letters and digits.
func safeCode(code string) string {
	if len(code) > 60 || strings.ContainsFunc(code, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '.'
	}) {
		return ""
	}
	return code
}

// ofTransport returns the error of a call without an answer: the context's error if the context has
// ended, otherwise an Error.
func ofTransport(ctx context.Context, src storage.Source, err error) error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return failure(src, Invalid, "%v; correct the source", refused)
	}
	if what, ok := certificateFault(err); ok {
		return failure(src, Invalid, "%s; set certificate in the storage-config entry to the PEM of the server's CA", what)
	}
	return failure(src, Busy, "%s; the load is tried again, so check the server and the network if this lasts", described(err))
}

// archiveOf returns how to unpack an object by its name, or nil if it is no archive. It fails for
// archives that cannot be unpacked.
func archiveOf(src storage.Source, name string) (*Archive, error) {
	if !src.Unpack {
		return nil, nil
	}
	name = strings.ToLower(name)
	for _, kind := range []struct{ suffix, format, compression string }{
		{".zip", "zip", ""},
		{".tar", "tar", ""},
		{".tar.gz", "tar", "gzip"},
		{".tgz", "tar", "gzip"},
		{".tar.bz2", "tar", "bzip2"},
		{".tbz2", "tar", "bzip2"},
		{".tar.zst", "tar", "zstd"},
		{".tzst", "tar", "zstd"},
	} {
		if strings.HasSuffix(name, kind.suffix) {
			return &Archive{Format: kind.format, Compression: kind.compression}, nil
		}
	}
	if strings.HasSuffix(name, ".tar.xz") || strings.HasSuffix(name, ".txz") {
		return nil, failure(src, Invalid, "archives with xz are not unpacked; use .tar.gz, .tar.zst or .zip")
	}
	return nil, nil
}

// single returns the listing of one object.
func single(src storage.Source, o Object) (Listing, error) {
	o.Name = base(o.Key)
	var err error
	if o.Archive, err = archiveOf(src, o.Name); err != nil {
		return Listing{}, err
	}
	return Listing{Objects: []Object{o}, Single: o.Archive == nil}, nil
}

// folder returns the listing of the objects below a prefix, which is empty or ends in a slash.
// Objects that mark folders must be left out before.
func folder(src storage.Source, prefix string, objects []Object) (Listing, error) {
	if len(objects) == 0 {
		return Listing{}, failure(src, Empty, "there is no file; correct the source, or upload the model")
	}
	for i := range objects {
		objects[i].Name = strings.TrimPrefix(objects[i].Key, prefix)
	}
	if len(objects) == 1 && !strings.Contains(objects[0].Name, "/") {
		archive, err := archiveOf(src, objects[0].Name)
		if err != nil {
			return Listing{}, err
		}
		objects[0].Archive = archive
	}
	return Listing{Objects: objects}, nil
}

// prefixOf returns the prefix of the keys of a source's folder.
func prefixOf(src storage.Source) string {
	if src.Path == "" || strings.HasSuffix(src.Path, "/") {
		return src.Path
	}
	return src.Path + "/"
}

// base returns the last element of a key.
func base(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// tooMany returns the error of a source with more than maxObjects files.
func tooMany(src storage.Source) error {
	return failure(src, Invalid, "there are more than %d files; name a folder further down", maxObjects)
}

// ofSchema converts the error of a missing object to that of a missing schema.
func ofSchema(src storage.Source, err error) error {
	var e *Error
	if errors.As(err, &e) && e.Reason == NotFound {
		return failure(src, NotFound, "there is no schema %q; correct schemaPath", storage.Redact(src.Schema))
	}
	return err
}
