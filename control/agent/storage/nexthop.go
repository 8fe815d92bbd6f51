package storage

import (
	"encoding/json"
)

// NextHop returns the path and the key that a runtime receives after the files of a model were
// fetched, in the form of ModelMesh's storage helper. localPath is the absolute path of the file or
// folder; that of a folder ends in a slash. localSchema is the absolute path of the schema, or
// empty. bytes is the size of the files.
//
// The key is a JSON object with bucket, disk_size_bytes, model_type, schema_path and storage_key.
// Other fields of the model's key do not pass, because parameters may be secret. A key that is no
// JSON object passes as it is.
func NextHop(r Request, localPath, localSchema string, bytes int64) (path, key string) {
	k, err := parseKey(r.Key)
	if err != nil || !k.object && r.Key != "" {
		return localPath, r.Key
	}
	bucket := k.params["bucket"]
	if bucket == "" {
		bucket = k.bucket
	}
	if s, isURI, err := parseURI(r.Path); err == nil && isURI && (s.Scheme == S3 || s.Scheme == GCS) {
		bucket = s.Bucket
	}
	text, err := json.Marshal(struct {
		Bucket     string          `json:"bucket,omitempty"`
		Bytes      int64           `json:"disk_size_bytes"`
		ModelType  json.RawMessage `json:"model_type,omitempty"`
		Schema     string          `json:"schema_path,omitempty"`
		StorageKey string          `json:"storage_key,omitempty"`
	}{bucket, bytes, k.modelType, localSchema, k.storageKey})
	if err != nil {
		return localPath, r.Key // never: a RawMessage that was marshaled is valid
	}
	return localPath, string(text)
}
