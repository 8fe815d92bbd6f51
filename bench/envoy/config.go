package envoy

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"sigs.k8s.io/yaml"
)

// Addresses are where an Envoy serves and finds extproc. An empty one stays as the configuration has it.
type Addresses struct {
	Listen string // HOST:PORT for clients. Where it is another than that of the configuration, no other port is listened at, as those of V2
	Admin  string // HOST:PORT for operators
	Socket string // extproc's Unix socket
}

func read(path string) (root any, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return root, nil
}

// edsConfig is where a configuration says who tells it of the endpoints.
var edsConfig = []any{"static_resources", "clusters", 0, "eds_cluster_config", "eds_config"}

// KnowsEndpoints says whether a configuration is told of the endpoints. Such a one can go on to the next pick, and any other takes
// one pick only.
func KnowsEndpoints(path string) (bool, error) {
	root, err := read(path)
	return at(root, edsConfig...) != nil, err
}

// Config reads a configuration such as envoy.yaml, and returns it as JSON with other addresses, the changes made in order,
// and all else as it is.
func Config(path string, a Addresses, changes ...Change) ([]byte, error) {
	root, err := read(path)
	if err != nil {
		return nil, err
	}
	listener := []any{"static_resources", "listeners", 0, "address", "socket_address"}
	was, _ := at(root, listener...).(map[string]any)
	before := fmt.Sprintf("%v:%v", was["address"], was["port_value"])
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
		node, ok := at(root, change.path...).(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: there is no %v to set to %s", path, change.path, change.value)
		}
		if err := change.apply(node, change.value); err != nil {
			return nil, err
		}
	}
	if first, ok := at(root, "static_resources", "listeners", 0).(map[string]any); ok && a.Listen != "" && a.Listen != before {
		var sockets []any // which stay
		all, _ := first["additional_addresses"].([]any)
		for _, a := range all {
			if at(a, "address", "pipe") != nil {
				sockets = append(sockets, a)
			}
		}
		first["additional_addresses"] = sockets
	}
	if a.Socket != "" {
		replace(root, back, filepath.Join(filepath.Dir(a.Socket), filepath.Base(back)))
	}
	for _, change := range changes {
		if err := change(root); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return json.Marshal(root)
}

// back is where envoy.yaml takes requests from the inner server of extproc.
const back = ".run/back.sock"

// replace puts a text in the place of every one that is the same as another.
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

// at walks down keys and indexes; nil where there is nothing.
func at(node any, path ...any) any {
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
