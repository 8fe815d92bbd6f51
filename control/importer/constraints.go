package importer

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/headgate/headgate/api/v1alpha1"
)

// typeConstraint is what ModelMesh requires and prefers of a model's type: labels of pods
// (MM_LABELS), which are words.
type typeConstraint struct {
	// Required are the labels that a pod must have, all of them.
	Required []string `json:"required"`
	// Preferred are labels of which a pod should have any.
	Preferred []string `json:"preferred"`
}

// otherTypes is the type of the constraint for all types without one.
const otherTypes = "_default"

// parseConstraints reads MM_TYPE_CONSTRAINTS: type constraints by type.
func parseConstraints(text []byte) (map[string]typeConstraint, error) {
	var all map[string]typeConstraint
	if err := json.Unmarshal(text, &all); err != nil || all == nil {
		return nil, errors.New(`these are no type constraints of ModelMesh, such as {"TYPE": {"required": ["LABEL"], "preferred": ["LABEL"]}}`)
	}
	return all, nil
}

// constraintsOf converts type constraints, in order of type. labels are the words of ModelMesh by
// the labels that replace them.
func constraintsOf(all map[string]typeConstraint) (constraints []v1alpha1.Constraint, labels map[string]string) {
	labels = make(map[string]string)
	label := func(word string) string {
		name := labelName(word)
		labels[name] = word
		return name
	}
	for _, of := range slices.Sorted(maps.Keys(all)) {
		c := v1alpha1.Constraint{ModelType: of}
		if of == otherTypes {
			c.ModelType = ""
		}
		for _, word := range all[of].Required {
			if c.Required == nil {
				c.Required = make(map[string]v1alpha1.LabelValue)
			}
			c.Required[label(word)] = labelValue
		}
		for _, word := range all[of].Preferred {
			if !slices.Contains(all[of].Required, word) {
				c.Preferred = append(c.Preferred, map[string]v1alpha1.LabelValue{label(word): labelValue})
			}
		}
		constraints = append(constraints, c)
	}
	return constraints, labels
}
