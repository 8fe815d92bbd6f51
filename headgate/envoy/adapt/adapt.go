// Package adapt adapts envoy.yaml to the addresses of a run.
package adapt

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"sigs.k8s.io/yaml"
)

// Addresses are the addresses of an Envoy and its extproc. An empty field leaves the address of the
// configuration unchanged.
type Addresses struct {
	Listen string   // HOST:PORT for clients; if it is set, Envoy opens no other ports but More
	More   []string // HOST:PORT of each other port for clients, such as those of ModelMesh
	Admin  string   // HOST:PORT of the admin interface
	Socket string   // path of extproc's Unix socket
}

// edsConfig is the path, inside a configuration, of the EDS server's address.
var edsConfig = []any{"static_resources", "clusters", 0, "eds_cluster_config", "eds_config"}

// KnowsEndpoints reports whether a configuration gets endpoints by EDS. Only then can Envoy retry a
// request at the next pick.
func KnowsEndpoints(config []byte) (bool, error) {
	var root any
	err := yaml.Unmarshal(config, &root)
	return At(root, edsConfig...) != nil, err
}

// Change modifies a configuration, which consists of maps, slices and scalars.
type Change func(root any) error

// Config parses a configuration such as envoy.yaml, replaces its addresses, and applies changes in
// order. It returns the result as JSON.
func Config(config []byte, a Addresses, changes ...Change) ([]byte, error) {
	var root any
	if err := yaml.Unmarshal(config, &root); err != nil {
		return nil, err
	}
	listener := []any{"static_resources", "listeners", 0, "address", "socket_address"}
	cluster := []any{"static_resources", "clusters", 1, "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address", "pipe"}
	for _, change := range []struct {
		path  []any
		value string
		apply func(node map[string]any, value string) error
	}{
		{listener, a.Listen, setSocketAddress},
		{[]any{"admin", "address", "socket_address"}, a.Admin, setSocketAddress},
		{cluster, a.Socket, setPath},
	} {
		if change.value == "" {
			continue
		}
		node, ok := At(root, change.path...).(map[string]any)
		if !ok {
			return nil, fmt.Errorf("there is no %v to set to %s", change.path, change.value)
		}
		if err := change.apply(node, change.value); err != nil {
			return nil, err
		}
	}
	if first, ok := At(root, "static_resources", "listeners", 0).(map[string]any); ok && a.Listen != "" {
		var more []any
		for _, address := range a.More {
			socket := make(map[string]any)
			if err := setSocketAddress(socket, address); err != nil {
				return nil, err
			}
			more = append(more, map[string]any{"address": map[string]any{"socket_address": socket}})
		}
		all, _ := first["additional_addresses"].([]any)
		for _, a := range all {
			if At(a, "address", "pipe") != nil { // Unix sockets stay
				more = append(more, a)
			}
		}
		first["additional_addresses"] = more
	}
	if a.Socket != "" {
		replace(root, back, filepath.Join(filepath.Dir(a.Socket), filepath.Base(back)))
	}
	for _, change := range changes {
		if err := change(root); err != nil {
			return nil, err
		}
	}
	return json.Marshal(root)
}

// back is the Unix socket at which envoy.yaml accepts requests from extproc's relay.
const back = ".run/back.sock"

// replace replaces, in maps and slices at any depth, every string that equals text by another.
func replace(node any, text, by string) {
	switch node := node.(type) {
	case map[string]any:
		for key, value := range node {
			if value == text {
				node[key] = by
			}
			replace(value, text, by)
		}
	case []any:
		for _, value := range node {
			replace(value, text, by)
		}
	}
}

func setPath(node map[string]any, path string) error {
	node["path"] = path
	return nil
}

func setSocketAddress(node map[string]any, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	node["address"], node["port_value"] = host, n
	return nil
}

// At returns the value at a path of map keys and slice indexes, nil if there is none.
func At(node any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := node.(map[string]any)
			node = m[step]
		case int:
			l, _ := node.([]any)
			if step >= len(l) {
				return nil
			}
			node = l[step]
		}
	}
	return node
}
