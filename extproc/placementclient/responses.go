package placementclient

import (
	"strings"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/internal/objects"
)

// maxMade is the maximum number of stored responses in one Report.
const maxMade = 2000

// responses returns the stored responses that were not yet reported.
func (t *connection) responses() (out []*placement.Responses) {
	for m, ids := range t.Fleet.TakeMade(maxMade) {
		out = append(out, &placement.Responses{Pool: m.Pool.String(), Endpoint: m.Address, Ids: ids})
	}
	return out
}

// makers records the makers of stored responses that other processes have reported.
func (t *connection) makers(told []*placement.Responses) {
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
