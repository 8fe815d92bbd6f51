package objects

import (
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
)

// Container is a running container of a pod.
type Container struct {
	// ID identifies one run of the container: after a restart it has another.
	ID string
	// Ports are the container ports that it declares.
	Ports []int32
	// Sidecar says that it is an init container that runs as long as the pod.
	Sidecar bool
}

// incarnation identifies one life of the engine that serves at ports of a pod: the ids of the
// containers that declare one of the ports. If none does, the ids of all containers but sidecars
// identify it, since any of them may be the engine.
func incarnation(containers []Container, ports []int32) string {
	ids := make([]string, 0, len(containers))
	for _, c := range containers {
		if slices.ContainsFunc(c.Ports, func(port int32) bool { return slices.Contains(ports, port) }) {
			ids = append(ids, c.ID)
		}
	}
	if len(ids) > 0 {
		return strings.Join(ids, ",")
	}
	for _, c := range containers {
		if !c.Sidecar {
			ids = append(ids, c.ID)
		}
	}
	return strings.Join(ids, ",")
}

// enginePorts returns the ports of an engine in a pod: the target port and the further ports of the
// pool's settings, which may be nil. A management port counts unless it is that of an agent, since
// the engine keeps its adapters when the agent restarts.
func enginePorts(kind engine.Kind, target int32, s *v1alpha1.PoolSettings) []int32 {
	ports := []int32{target}
	if s == nil {
		return ports
	}
	if p := s.Spec.Ports; p != nil {
		for _, port := range []*int32{p.GRPC, p.HTTP} {
			if port != nil {
				ports = append(ports, *port)
			}
		}
	}
	if p := s.Spec.Placement; p != nil && !kind.Adapters() {
		if text, ok := strings.CutPrefix(p.Management, portScheme); ok {
			if port, err := strconv.ParseUint(text, 10, 16); err == nil {
				ports = append(ports, int32(port))
			}
		}
	}
	return ports
}
