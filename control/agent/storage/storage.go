// Package storage finds the source of a model and its credentials. It parses the path and the key
// of a load call, and the entries of a storage-config Secret. It does no I/O.
package storage

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Scheme is a kind of storage.
type Scheme string

const (
	// S3 is Amazon S3, or a server of the same protocol: s3://BUCKET/PATH.
	S3 Scheme = "s3"
	// GCS is Google Cloud Storage: gs://BUCKET/PATH.
	GCS Scheme = "gs"
	// Azure is Azure Blob Storage: https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH.
	Azure Scheme = "azure"
	// Web is a web server: http://… or https://….
	Web Scheme = "http"
	// Claim is a mounted PersistentVolumeClaim: pvc://CLAIM/PATH.
	Claim Scheme = "pvc"
	// Hub is the Hugging Face Hub: hf://OWNER/REPO[:REVISION].
	Hub Scheme = "hf"
	// OCI is an image in a registry: oci://REGISTRY/REPO[:TAG|@DIGEST].
	OCI Scheme = "oci"
)

// schemes are the schemes by the types that entries and parameters name.
var schemes = map[string]Scheme{
	"s3": S3, "gs": GCS, "gcs": GCS, "azure": Azure, "http": Web, "https": Web, "pvc": Claim, "hf": Hub, "oci": OCI,
}

// Source is the place of one model's files. Its zero value means that the engine reads the path
// itself.
type Source struct {
	Scheme Scheme
	// URI is the canonical URI without credentials and without a query that may hold a signature.
	// Messages show it.
	URI string
	// Bucket is the bucket, the container, the claim, the owner and repository of a Hub, or the
	// repository of an image with its registry. Empty for Web.
	Bucket string
	// Path is the path in the bucket, or the URL for Web, without user information and query. It
	// has no leading slash, except in a URL. It ends in a slash if the source does.
	Path string
	// Schema is the path of the schema file in the same bucket, or its URL for Web; empty if there
	// is none.
	Schema string
	// Revision is the revision of a Hub repository, or the tag or digest of an image. A digest
	// contains a colon.
	Revision string
	// Unpack means that the agent unpacks a single object if it is an archive, as KServe does. It
	// is true for URIs. It is false for a path with a separate bucket, because ModelMesh stores
	// archives unchanged.
	Unpack bool
	// Entry is the name of the storage-config entry that was used; empty if none was.
	Entry string
	// CustomServer means that parameters of the model, not an entry, name the server. The pod's own
	// cloud identity and the agent's own tokens are not used there.
	CustomServer bool
	// Fields are the credentials and settings: those of the storage-config entry, overridden by the
	// parameters of the model. They are secret. Nested names are joined by dots.
	//
	//	s3     access_key_id, secret_access_key, session_token, endpoint_url, region, certificate,
	//	       verify_ssl, anonymous, addressing_style
	//	gs     private_key, client_email, token_uri, endpoint_url, certificate, anonymous
	//	azure  account_url, connection_string, client_id, client_secret, tenant_id, sas, anonymous
	//	http   headers.NAME, certificate, client_certificate, client_key, user, password, query
	//	hf     token, endpoint, include
	//	oci    registry, username, password, token, auths.REGISTRY.auth, .dockerconfigjson,
	//	       insecure, certificate
	Fields map[string]string
}

// Key returns the name under which the bytes of the source are stored: two sources have the same
// key if they name the same files with the same credentials and settings. So no model receives
// files for which its own credentials do not suffice. The key is a file name.
func (s Source) Key() string {
	h := sha256.New()
	put := func(parts ...string) {
		for _, part := range parts {
			h.Write([]byte(strconv.Itoa(len(part)) + ":" + part))
		}
	}
	put(string(s.Scheme), s.Bucket, s.Path, s.Schema, s.Revision, strconv.FormatBool(s.Unpack), strconv.FormatBool(s.CustomServer))
	for _, name := range slices.Sorted(maps.Keys(s.Fields)) {
		put(name, s.Fields[name])
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Error is the reason why a load call has no usable source. Its message is one sentence and
// contains no secret.
type Error struct{ Message string }

func (e *Error) Error() string { return e.Message }

// faulty returns an Error. The arguments must not be secret.
func faulty(format string, arguments ...any) *Error { return &Error{fmt.Sprintf(format, arguments...)} }

// Allowed returns an error unless the URI of the source begins with one of the prefixes. Without
// prefixes every source is allowed. A prefix ends at the end of an element: s3://models/a allows
// s3://models/a/b and not s3://models/ab. A server that parameters name is never below a prefix,
// because URIs do not show it.
func Allowed(s Source, prefixes []string) error {
	if len(prefixes) == 0 {
		return nil
	}
	if s.CustomServer {
		return &Error{Redact(s.URI) + " is at a server that the model's parameters name, which --allow excludes; " +
			"name the server in a storage-config entry"}
	}
	for _, prefix := range prefixes {
		if below(s.URI, prefix) {
			return nil
		}
	}
	return &Error{Redact(s.URI) + " is below no prefix of --allow; use an allowed source, or add a prefix"}
}

// below reports whether a URI is a prefix, or continues it with another element.
func below(uri, prefix string) bool {
	rest, ok := strings.CutPrefix(uri, prefix)
	switch {
	case !ok || prefix == "":
		return false
	case rest == "" || strings.HasSuffix(prefix, "/") || rest[0] == '/':
		return true
	}
	_, host, _ := strings.Cut(prefix, "://")
	named := strings.Contains(host, "/") // a colon before the path is that of a port
	return named && (rest[0] == ':' || rest[0] == '@') && !strings.HasPrefix(prefix, "http")
}
