package placementserver_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/internal/engine"
)

// methods returns the gRPC methods of each runtime, by endpoint, from the Updates in heard.
func methods(heard []*placement.Update) map[string]engine.Methods {
	all := make(map[string]engine.Methods)
	for _, u := range heard {
		for _, r := range u.GetRuntimes() {
			if all[r.GetEndpoint()] = engine.MethodsOfLines(r.GetMethods()); len(r.GetMethods()) == 0 {
				delete(all, r.GetEndpoint())
			}
		}
	}
	return all
}

// An extproc that joins receives the gRPC methods of each runtime. Every extproc receives each
// change once, and an empty set for a removed runtime.
func TestRuntimeMethodsAreSent(t *testing.T) {
	started(t, func(w *world) {
		const one, two = "10.0.0.1:80", "10.0.0.2:80"
		w.SetMethods(one, "a.S/One 1")
		w.SetMethods(two, "a.S/One 1\n*")
		w.SetMethods("10.0.0.3:80", "")
		x := w.connect("x")
		if got := methods(x.heard()); !maps.Equal(got, map[string]engine.Methods{one: "a.S/One 1", two: "a.S/One 1\n*"}) {
			t.Errorf("in the beginning it knows %q", got)
		}
		before := len(x.heard())
		w.SetMethods(one, "a.S/One 1") // no change
		w.SetMethods(one, "a.S/One 2")
		w.SetMethods(two, "")
		w.SetMethods(two, "")
		w.after(0)
		if got := methods(x.heard()); !maps.Equal(got, map[string]engine.Methods{one: "a.S/One 2"}) {
			t.Errorf("then it knows %q", got)
		}
		var told []string
		for _, u := range x.heard()[before:] {
			for _, r := range u.GetRuntimes() {
				told = append(told, r.GetEndpoint())
			}
		}
		slices.Sort(told)
		if !slices.Equal(told, []string{one, two}) {
			t.Errorf("it was told of %q, want each change once", told)
		}
	})
}
