package drive

import (
	"strings"

	"github.com/headgate/headgate/control/attach/status"
	"github.com/headgate/headgate/internal/objects"
)

// Facts is what Envoys say of plans, for the status of objects: who has all has it at each port, but for what is refused.
func (p Plans) Facts() status.Facts {
	f := status.Facts{Gateways: make(map[objects.Name]status.Gateway)}
	for _, g := range p.Plans.Gateways {
		if !p.Programmed[g.Gateway] {
			continue
		}
		is := status.Gateway{Ports: make(map[int32]status.Port)}
		for _, port := range g.Ports {
			is.Ports[port.Number] = status.Port{Refused: strings.Join(g.Refused, "; ")}
		}
		f.Gateways[g.Gateway] = is
	}
	return f
}
