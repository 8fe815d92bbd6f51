package fetch

import (
	"path"
	"strings"
)

// Action is what an entry of an archive does to the folder of a model.
type Action int

const (
	// Skip means that the entry does not belong to the model.
	Skip Action = iota
	// Store means that the entry is a file or folder of the model.
	Store
	// Remove means that the path and everything below it is removed, except entries of the same
	// archive.
	Remove
	// Clear means that the content of the folder is removed, except entries of the same archive.
	Clear
	// Refuse means that the name is absolute or has "..": the archive must not be unpacked.
	Refuse
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// Entry returns what the entry of that name does, and the path below the model's folder that it
// does it to: "." for the folder itself. Only archives that are layers have whiteouts (OCI image
// specification, layer.md): names that begin with ".wh." and remove what earlier layers stored.
func (a Archive) Entry(name string) (string, Action) {
	if strings.HasPrefix(name, "/") || hasParent(name) {
		return "", Refuse
	}
	name = path.Clean(name)
	action := Store
	if a.Layer {
		folder, file := path.Split(name)
		switch {
		case file == opaque:
			name, action = path.Clean(folder), Clear
		case strings.HasPrefix(file, whiteout+whiteout):
			return "", Skip // for the tool that made the layer
		case strings.HasPrefix(file, whiteout):
			target := strings.TrimPrefix(file, whiteout)
			if target == "" || target == "." || target == ".." {
				return "", Refuse
			}
			name, action = folder+target, Remove
		}
	}
	prefix := path.Clean(a.Prefix)
	if prefix == "." {
		return name, action
	}
	// A whiteout of the model's folder, or of one above, removes all that earlier layers stored.
	if action != Store && (name == "." || strings.HasPrefix(prefix+"/", name+"/")) {
		return ".", Clear
	}
	if below, ok := strings.CutPrefix(name+"/", prefix+"/"); ok {
		return path.Clean(below), action
	}
	return "", Skip
}

// hasParent reports whether an element of a path is "..".
func hasParent(name string) bool {
	for element := range strings.SplitSeq(name, "/") {
		if element == ".." {
			return true
		}
	}
	return false
}
