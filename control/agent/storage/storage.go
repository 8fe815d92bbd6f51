// Package storage describes where the files of a model are, and with which credentials they are
// fetched. It reads the path and the key of a load call, and the entries of a storage-config
// Secret. It does no I/O.
package storage

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
	// Path is the path in the bucket, or the whole URL for Web. It has no leading slash, except in
	// a URL.
	Path string
	// Schema is the path of the schema file in the same bucket; empty if there is none.
	Schema string
	// Revision is the revision of a Hub repository, or the tag or digest of an image.
	Revision string
	// Fields are the credentials and settings: those of the storage-config entry, overridden by the
	// parameters of the model. They are secret.
	Fields map[string]string
}
