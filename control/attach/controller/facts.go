package controller

import (
	"strings"

	"github.com/headgate/headgate/control/attach/conditions"
	"github.com/headgate/headgate/internal/objects"
)

// Facts is what Envoys say of plans, for the status of objects: who has all has it at each port, but for what is refused.
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
