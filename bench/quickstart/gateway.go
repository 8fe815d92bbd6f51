package quickstart

import (
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/headgate/headgate/bench/rig"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// useGateway has Envoy be that of the Gateway in a run's objects, which says where it listens. There is to be one, with an HTTP listener
// at which an LLMRoute attaches: that is where the run is seen to be ready.
func useGateway(c *rig.Config) error {
	set, err := dir.Read(c.Objects, slices.Concat(kinds.All(), kinds.Network()))
	if err != nil {
		return err
	}
	all := attach.Of(set.Network).Gateways
	if len(all) != 1 {
		return fmt.Errorf("--gateway: the objects in %s have %d Gateways of a GatewayClass whose controllerName is %s, want one", c.Objects, len(all), attach.Controller)
	}
	g := all[0]
	host := "0.0.0.0"
	if len(g.Spec.Addresses) > 0 {
		host = g.Spec.Addresses[0].Value
	}
	for _, l := range g.Listeners {
		if l.Offers() && l.Protocol == "HTTP" && l.Hostname == "" {
			c.Gateway, c.Listen = g.Name.String(), net.JoinHostPort(host, strconv.Itoa(int(l.Port)))
			return nil
		}
	}
	return fmt.Errorf("--gateway: no LLMRoute in %s attaches to an HTTP listener without a hostname of Gateway %s", c.Objects, g.Name)
}
