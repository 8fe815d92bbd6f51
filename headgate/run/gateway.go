package run

import (
	"fmt"
	"net"
	"strconv"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// useGateway makes Envoy the data plane of the Gateway in the objects, at the Gateway's address.
// The objects must contain exactly one Gateway, with an HTTP listener to which an LLMRoute is
// attached: the rig sends requests there to detect that the run is ready.
func useGateway(c *rig.Config) error {
	set, err := dir.Read(c.Objects, kinds.WithNetwork())
	if err != nil {
		return err
	}
	all := attach.Of(set.Network).Gateways
	if len(all) != 1 {
		return fmt.Errorf("--gateway: the objects in %s have %d Gateways of a GatewayClass whose controllerName is %s, want one", c.Objects,
			len(all), attach.Controller)
	}
	g := all[0]
	for _, l := range g.Listeners {
		if l.Offers() && l.Protocol == "HTTP" && l.Hostname == "" {
			c.Gateway, c.Listen = g.Name.String(), net.JoinHostPort(g.Address(), strconv.Itoa(int(l.Port)))
			return nil
		}
	}
	return fmt.Errorf("--gateway: no LLMRoute in %s attaches to an HTTP listener without a hostname of Gateway %s", c.Objects, g.Name)
}
