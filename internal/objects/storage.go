package objects

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/v1alpha1"
)

// maxStorageParameters limits the parameters of a Model's storage, and maxParameter the characters
// of each.
const maxStorageParameters, maxParameter = 32, 4096

// infoOf returns what a model runtime gets together with the source: the Model's key, or the JSON
// that ModelMesh would send for its storage (modelKey). The type is part of that JSON only if the
// Model states one.
func infoOf(s *v1alpha1.ModelSpec) string {
	if s.Storage == nil {
		return s.Key
	}
	type modelType struct {
		Name string `json:"name"`
	}
	info := struct {
		Type   *modelType                           `json:"model_type,omitempty"`
		Schema string                               `json:"schema_path,omitempty"`
		Key    string                               `json:"storage_key,omitempty"`
		Params map[string]v1alpha1.StorageParameter `json:"storage_params,omitempty"`
	}{Schema: s.Storage.SchemaPath, Key: s.Storage.Key, Params: s.Storage.Parameters}
	if s.Type != "" {
		info.Type = &modelType{s.Type}
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(info); err != nil {
		return "" // texts always have a JSON form
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// sameStorage reports whether two Models have the same storage.
func sameStorage(a, b *v1alpha1.Storage) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Key == b.Key && a.SchemaPath == b.SchemaPath && maps.Equal(a.Parameters, b.Parameters)
}

// checkStorage validates a Model's storage, and refuses storage together with a key.
func checkStorage(spec *field.Path, m *v1alpha1.ModelSpec) field.ErrorList {
	s := m.Storage
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	if m.Key != "" {
		errs = append(errs, field.Invalid(spec.Child("key"), "", // the key may be secret
			"with storage, control writes the key: leave key empty, or write storage_key and storage_params into it instead of storage"))
	}
	path := spec.Child("storage")
	if s.Key != "" && len(validation.IsConfigMapKey(s.Key)) > 0 { // Secrets have the same rule
		errs = append(errs, field.Invalid(path.Child("key"), s.Key, "no Secret can have this key: write one such as my-bucket"))
	}
	parameters := path.Child("parameters")
	if n := len(s.Parameters); n > maxStorageParameters {
		errs = append(errs, field.TooMany(parameters, n, maxStorageParameters))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Parameters)) {
		if n := utf8.RuneCountInString(name); n == 0 || n > maxNameLen {
			errs = append(errs, field.Invalid(parameters, "", "the name of a parameter has 1 to 253 characters"))
		}
		errs = append(errs, checkLength(parameters.Key(name), string(s.Parameters[name]), maxParameter)...)
	}
	return append(errs, checkLength(path.Child("schemaPath"), s.SchemaPath, maxPath)...)
}
