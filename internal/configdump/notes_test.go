package configdump

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

func TestNotes(t *testing.T) {
	small, none := objects.Name{Namespace: "ns", Name: "small"}, objects.Name{Namespace: "ns", Name: "none"}
	w := &objects.World{Pools: map[objects.Name]*objects.Pool{small: {}}}
	firstToken := []v1alpha1.Objective{{Type: v1alpha1.TimeToFirstToken}}
	perToken := []v1alpha1.Objective{{Type: v1alpha1.OutputTokenLatency}}
	for name, c := range map[string]struct {
		sharing    *objects.Sharing
		objectives []v1alpha1.Objective
		want       string
	}{
		"default":           {nil, nil, ""},
		"an objective":      {&objects.Sharing{Shed: true}, firstToken, ""},
		"another objective": {&objects.Sharing{Shed: true}, perToken, "by client deadlines only"},
		"a fallback":        {&objects.Sharing{Fallback: objects.Fallback{Pool: small}}, nil, ""},
		"no such pool":      {&objects.Sharing{Fallback: objects.Fallback{Pool: none}}, nil, "no fallback: pool ns/none does not exist"},
	} {
		got := strings.Join(notes(w, &objects.Route{Sharing: c.sharing, Objectives: c.objectives}), ", ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
