package dir

import (
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// wholeNumber matches a number without a fraction.
var wholeNumber = regexp.MustCompile(`^-?[0-9]+$`)

// typeHint returns what to do about a value of the wrong type, with a separator; empty if the types
// say enough.
func typeHint(wrong *json.UnmarshalTypeError) string {
	number, is := strings.CutPrefix(wrong.Value, "number")
	number = strings.TrimSpace(number)
	switch kind := wrong.Type.Kind(); {
	case kind >= reflect.Int && kind <= reflect.Uint64 && is && wholeNumber.MatchString(number):
		return ": it is out of range"
	case kind == reflect.String && is:
		return `: put it in quotes, and give a time its unit, such as "60s"`
	case kind == reflect.String && wrong.Value == "bool":
		return `: put it in quotes, since without them YAML reads On, Off, Yes and No as true or false`
	}
	return ""
}

// index matches the index of a list or the key of a mapping in a field path.
var index = regexp.MustCompile(`\[[^]]*\]`)

// knownFields returns the sorted names of the fields beside the unknown field at a path in a value
// of a type, as JSON has them. It returns nil if the path does not lead to a struct.
func knownFields(t reflect.Type, path string) []string {
	parts := strings.Split(index.ReplaceAllString(path, ""), ".")
	for _, part := range parts[:len(parts)-1] {
		t = element(t)
		if t.Kind() != reflect.Struct {
			return nil
		}
		next, ok := fieldsOf(t)[part]
		if !ok {
			return nil
		}
		t = next
	}
	if t = element(t); t.Kind() != reflect.Struct {
		return nil
	}
	var names []string
	for name := range fieldsOf(t) {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// element returns the type of the values in pointers, lists and mappings.
func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t
}

// fieldsOf returns the types of a struct's fields by their names in JSON.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	all := make(map[string]reflect.Type)
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && name == "" || slices.Contains(strings.Split(options, ","), "inline"):
			maps.Copy(all, fieldsOf(element(f.Type)))
		case name != "":
			all[name] = f.Type
		default:
			all[f.Name] = f.Type
		}
	}
	return all
}
