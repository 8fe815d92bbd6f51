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

// Merged stands for conditions of a kind with the same reason: those of one object, or those of
// several objects with the same types and message.
type Merged struct {
	Kind, Of        string
	Names, Types    []string
	Reason, Message string
}

// Merge groups conditions, for people. It keeps the first message for each object and reason, and
// the order in which the reasons first appear.
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
