package controller

import (
	"strings"

	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/internal/objects"
)

// Facts returns facts about Envoys for the status of objects: the ports whose resources an Envoy
// has answered, and the errors of Envoys.
func (p Plans) Facts() conditions.Facts {
	f := conditions.Facts{Gateways: make(map[objects.Name]conditions.Gateway)}
	for _, g := range p.Plans.Gateways {
		if !p.Programmed[g.Gateway] {
			continue
		}
		is := conditions.Gateway{Ports: make(map[int32]conditions.Port)}
		for _, port := range g.Ports {
			is.Ports[port.Number] = conditions.Port{Refused: strings.Join(g.Refused, "; ")}
		}
		f.Gateways[g.Gateway] = is
	}
	return f
}
