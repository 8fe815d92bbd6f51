// Package leak finds data that a program keeps after everything that it served has ended.
package leak

import (
	"reflect"
	"time"
)

// Maps returns the sizes of all maps that can be reached from a value, by path of field names. It
// follows pointers, interfaces, and the elements of slices and maps, but not atomic pointers. The
// elements of a slice or map share one path, and the sizes of their maps are added up. Nothing may
// change the value during the call.
func Maps(v any) map[string]int { return sizes(v, false) }

// MapsAndSlices is like Maps, but also returns the lengths of slices.
func MapsAndSlices(v any) map[string]int { return sizes(v, true) }

func sizes(v any, slices bool) map[string]int {
	w := walk{slices: slices, sizes: make(map[string]int), seen: make(map[seen]bool)}
	w.value(reflect.ValueOf(v), "")
	return w.sizes
}

type seen struct {
	at uintptr
	of reflect.Type
}

type walk struct {
	slices bool
	sizes  map[string]int
	seen   map[seen]bool
}

var moment = reflect.TypeFor[time.Time]() // not followed, because its time zone has slices

func (w *walk) value(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Pointer:
		if at := (seen{v.Pointer(), v.Type()}); !v.IsNil() && !w.seen[at] {
			w.seen[at] = true
			w.value(v.Elem(), path)
		}
	case reflect.Interface:
		w.value(v.Elem(), path)
	case reflect.Struct:
		for i := 0; i < v.NumField() && v.Type() != moment; i++ {
			w.value(v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	case reflect.Slice, reflect.Array:
		if w.slices && v.Kind() == reflect.Slice {
			w.sizes[path] += v.Len()
		}
		for i := 0; i < v.Len() && refers(v.Type().Elem()); i++ {
			w.value(v.Index(i), path)
		}
	case reflect.Map:
		w.sizes[path] += v.Len()
		for all := v.MapRange(); all.Next(); {
			w.value(all.Value(), path)
		}
	}
}

// refers reports whether values of a type can refer to others. Tables of numbers are not searched.
func refers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
		return true
	case reflect.Array:
		return refers(t.Elem())
	case reflect.Struct:
		for f := range t.Fields() {
			if refers(f.Type) {
				return true
			}
		}
	}
	return false
}
