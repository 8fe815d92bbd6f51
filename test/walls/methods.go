package main

import (
	"fmt"
	"go/types"
	"slices"
	"strings"
)

// crowdedTypes returns the types with more than maxMethods methods. The methods of embedded types
// count as well.
func crowdedTypes(t tree) (breaches []string) {
	for _, object := range resolve(t).Defs {
		name, ok := object.(*types.TypeName)
		if !ok || name.IsAlias() || types.IsInterface(name.Type()) {
			continue
		}
		full := strings.TrimPrefix(name.Pkg().Path(), module) + "." + name.Name()
		if n := types.NewMethodSet(types.NewPointer(name.Type())).Len(); n > maxMethods {
			breaches = append(breaches,
				fmt.Sprintf("%s has %d methods, and may have %d: split its state, so that each part has its own type", full, n, maxMethods))
		}
	}
	slices.Sort(breaches)
	return breaches
}
