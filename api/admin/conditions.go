package admin

import "slices"

// Condition is a condition of an object that is False. Control answers a list of them to
// GET /conditions.
type Condition struct {
	Kind string `json:"kind"`
	Name string `json:"name"` // NAMESPACE/NAME
	// Of is the part of the object: a listener or a parent; empty for the object itself.
	Of      string `json:"of,omitempty"`
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Merged is several conditions: those with a reason of one object, or of several objects of a kind
// that have the same ones.
type Merged struct {
	Kind, Of        string
	Names, Types    []string
	Reason, Message string
}

// Merge merges conditions, for people. The first message of an object and reason counts. The order
// is that of the first conditions.
func Merge(all []Condition) []Merged {
	type object struct{ kind, name, of, reason string }
	objects := make(map[object]int)
	var each []Merged
	for _, c := range all {
		key := object{c.Kind, c.Name, c.Of, c.Reason}
		i, there := objects[key]
		if !there {
			objects[key] = len(each)
			each = append(each, Merged{c.Kind, c.Of, []string{c.Name}, []string{c.Type}, c.Reason, c.Message})
		} else if !slices.Contains(each[i].Types, c.Type) {
			each[i].Types = append(each[i].Types, c.Type)
		}
	}
	type text struct{ kind, of, reason, message string }
	texts := make(map[text][]int) // indices of merged
	var merged []Merged
	for _, m := range each {
		key := text{m.Kind, m.Of, m.Reason, m.Message}
		i := slices.IndexFunc(texts[key], func(i int) bool { return slices.Equal(merged[i].Types, m.Types) })
		if i < 0 {
			texts[key] = append(texts[key], len(merged))
			merged = append(merged, m)
			continue
		}
		same := &merged[texts[key][i]]
		same.Names = append(same.Names, m.Names...)
	}
	return merged
}
