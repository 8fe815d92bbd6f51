package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Entries are the entries of a storage-config Secret by key, each with its fields. Names of nested
// fields are joined by dots. The values are secret.
type Entries map[string]map[string]string

// ReadEntries reads the files of a mounted storage-config Secret, by file name. Each is a JSON
// object. Files whose names begin with a dot are Kubernetes' own. It returns all entries that it
// can read, and an error for each other one, which names the entry and none of its values.
func ReadEntries(files map[string][]byte) (Entries, []error) {
	entries, failed := Entries{}, []error(nil)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasPrefix(name, ".") {
			continue
		}
		fields, err := readObject(files[name])
		if err != nil {
			failed = append(failed, faulty("the storage-config entry %q %v; correct the Secret", name, err))
			continue
		}
		entries[name] = flatten(fields)
	}
	return entries, failed
}

// readObject reads a JSON object. Its errors name places and no values: encoding/json's show parts
// of what they read.
func readObject(text []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		var mistake *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &mistake):
			return nil, fmt.Errorf("is not valid JSON at byte %d", mistake.Offset)
		case errors.As(err, &kind):
			return nil, errors.New("is no JSON object")
		}
		return nil, errors.New("is not complete JSON")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has text after its JSON object")
	}
	if fields == nil {
		return nil, errors.New("is no JSON object")
	}
	return fields, nil
}

// flatten returns the values of an object by their dotted names. Elements of lists have their index
// as name. Values that are null or empty objects are left out.
func flatten(fields map[string]any) map[string]string {
	flat := map[string]string{}
	var add func(name string, value any)
	add = func(name string, value any) {
		switch v := value.(type) {
		case map[string]any:
			for inner, value := range v {
				add(name+"."+inner, value)
			}
		case []any:
			for i, value := range v {
				add(name+"."+strconv.Itoa(i), value)
			}
		case string:
			flat[name] = v
		case json.Number:
			flat[name] = v.String()
		case bool:
			flat[name] = strconv.FormatBool(v)
		}
	}
	for name, value := range fields {
		add(name, value)
	}
	return flat
}

// find returns the entry for a model. If the model names an entry, it must exist and must not have
// another type. Otherwise, find returns default_TYPE, or default if that is of the type. The type
// is empty if only the entry has it.
func (e Entries) find(name string, scheme Scheme) (found string, fields map[string]string, err error) {
	if name != "" {
		fields, ok := e[name]
		if !ok {
			return "", nil, faulty("storage-config has no entry %q; add it to the Secret, or correct the model's storage key", name)
		}
		if has := fields["type"]; scheme != "" && has != "" && schemes[has] != scheme {
			return "", nil, faulty("the storage-config entry %q has the type %q, and the model's source is of type %q; use another entry",
				name, has, scheme)
		}
		return name, fields, nil
	}
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(schemes)) {
		if schemes[kind] == scheme {
			names = append(names, "default_"+kind)
		}
	}
	for _, name := range append(names, "default") {
		fields, ok := e[name]
		if has := fields["type"]; ok && (scheme == "" || has == "" && name != "default" || schemes[has] == scheme) {
			return name, fields, nil
		}
	}
	return "", nil, nil
}
