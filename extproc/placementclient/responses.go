package placementclient

import (
	"strings"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/internal/objects"
)

// maxMade bounds of how many stored responses one Report tells.
const maxMade = 2000

// responses returns what to tell of stored responses that were made since they were last told of.
func (t *talk) responses() (out []*placement.Responses) {
	for m, ids := range t.Fleet.TakeMade(maxMade) {
		out = append(out, &placement.Responses{Pool: m.Pool.String(), Endpoint: m.Address, Ids: ids})
	}
	return out
}

// makers puts in force who made stored responses, as others tell.
func (t *talk) makers(told []*placement.Responses) {
	for _, r := range told {
		namespace, name, ok := strings.Cut(r.GetPool(), "/")
		if !ok {
			continue
		}
		m := fleet.Maker{Pool: objects.Name{Namespace: namespace, Name: name}, Address: r.GetEndpoint()}
		for _, id := range r.GetIds() {
			t.Fleet.RememberMaker(id, m)
		}
	}
}
