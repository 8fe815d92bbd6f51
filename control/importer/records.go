package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// pair is a key of etcd with its value.
type pair struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// modelRecord is a model in ModelMesh's registry (ModelRecord.java): JSON without fields that have
// their default. Fields about copies and failures are not read.
type modelRecord struct {
	Type       string `json:"type"`
	Key        string `json:"encKey"`
	Path       string `json:"mPath"`
	AutoDelete bool   `json:"autoDel"`
}

// defaultType is the type of a record without one.
const defaultType = "NLCLASSIFIER"

// vmodelRecord is a VModel in ModelMesh's registry (VModelRecord.java).
type vmodelRecord struct {
	Owner  string `json:"o"`
	Active string `json:"amid"`
	Target string `json:"tmid"`
	// Failed means that the target could not be loaded. Requests then go to the active model.
	Failed bool `json:"failed"`
}

// registry is the models and VModels of one ModelMesh service, by id.
type registry struct {
	models  map[string]modelRecord
	vmodels map[string]vmodelRecord
}

// left is a record that cannot be taken over.
type left struct {
	kind, id string // kind is model, vmodel or constraint
	why      string
}

func (l left) String() string { return fmt.Sprintf("%s %q: %s", l.kind, l.id, l.why) }

// The tables of a ModelMesh service in etcd. A table is a folder of the service's prefix, and the
// rest of a key is the id, which may have slashes.
const (
	modelTable  = "registry"
	vmodelTable = "vmodels"
)

// tables are the folders of a service's prefix.
var tables = []string{modelTable, vmodelTable, "config", "instances", "leaderLatch"}

// cut splits a key below prefix into the service's prefix, the table and the id; false for a key
// that is in no table.
func cut(key, prefix string) (service, table, id string, ok bool) {
	rest, below := strings.CutPrefix(key, prefix)
	if !below {
		return "", "", "", false
	}
	at := 0
	for {
		segment, after, more := strings.Cut(rest[at:], "/")
		if !more {
			return "", "", "", false
		}
		if slices.Contains(tables, segment) {
			return strings.TrimSuffix(prefix+rest[:at], "/"), segment, after, after != ""
		}
		at += len(segment) + 1
	}
}

// parse reads the records below a prefix. All must belong to one service.
func parse(all []pair, prefix string) (registry, []left, error) {
	r := registry{make(map[string]modelRecord), make(map[string]vmodelRecord)}
	var lefts []left
	services := make(map[string]int)
	for _, kv := range all {
		service, table, id, ok := cut(string(kv.Key), prefix)
		if !ok || table != modelTable && table != vmodelTable {
			continue
		}
		services[service]++
		why := ""
		switch {
		case !utf8.ValidString(id):
			id, why = strings.ToValidUTF8(id, "\uFFFD"), "its id is not UTF-8"
		case table == modelTable:
			var m modelRecord
			if why = read(kv.Value, &m); why == "" {
				if m.Type == "" {
					m.Type = defaultType
				}
				r.models[id] = m
			}
		default:
			var v vmodelRecord
			if why = read(kv.Value, &v); why == "" && v.Target == "" {
				why = "it has no target"
			}
			if why == "" {
				r.vmodels[id] = v
			}
		}
		if why != "" {
			kind := "model"
			if table == vmodelTable {
				kind = "vmodel"
			}
			lefts = append(lefts, left{kind, id, why})
		}
	}
	if len(services) > 1 {
		var words []string
		for service, n := range services {
			words = append(words, fmt.Sprintf("  --prefix %s/    %d records", service, n))
		}
		slices.Sort(words)
		return r, nil, fmt.Errorf("these are the records of %d services; choose one:\n%s", len(services), strings.Join(words, "\n"))
	}
	if len(services) == 0 {
		return r, nil, fmt.Errorf("of %d keys none is a model or a VModel of ModelMesh below %q: such keys are PREFIX/%s/ID and PREFIX/%s/ID",
			len(all), prefix, modelTable, vmodelTable)
	}
	return r, lefts, nil
}

// read decodes a record, and returns why it is not valid. The reason has none of its text, which
// may contain a secret.
func read(text []byte, into any) (why string) {
	err := json.Unmarshal(text, into)
	if err == nil {
		return ""
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("its field %s is not a %s", wrong.Field, wrong.Type)
	}
	return "its value is not JSON"
}

// dump is the output of etcdctl get --prefix PREFIX -w json.
type dump struct {
	Pairs *[]pair `json:"kvs"`
	Count int     `json:"count"`
	More  bool    `json:"more"`
}

// parseDump reads the output of etcdctl get --prefix PREFIX -w json.
func parseDump(text []byte) ([]pair, error) {
	var d dump
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, errors.New("this is not the output of etcdctl get --prefix PREFIX -w json")
	}
	switch {
	case d.Pairs == nil:
		return nil, errors.New("this has no keys (kvs): write it with etcdctl get --prefix PREFIX -w json")
	case d.More || d.Count > len(*d.Pairs):
		return nil, fmt.Errorf("this has %d of %d keys: write it without --limit", len(*d.Pairs), d.Count)
	}
	return *d.Pairs, nil
}
