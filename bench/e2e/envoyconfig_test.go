package e2e

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/headgate/headgate/headgate/envoy/adapt"
)

var (
	connectionManager = []any{"static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config"}
	filtersAt         = "http_filters"
)

const extProc = "envoy.filters.http.ext_proc"

// setExtProc sets fields of the ext_proc filter. A nil value removes a field.
func setExtProc(fields map[string]any) adapt.Change {
	return func(root any) error {
		filters, i := findExtProc(root)
		if i < 0 {
			return fmt.Errorf("there is no filter %s", extProc)
		}
		config, ok := adapt.At(filters[i], "typed_config").(map[string]any)
		if !ok {
			return fmt.Errorf("the filter %s has no typed_config", extProc)
		}
		for key, value := range fields {
			if value == nil {
				delete(config, key)
				continue
			}
			config[key] = value
		}
		return nil
	}
}

// enableFilter enables a disabled filter.
func enableFilter(name string) adapt.Change {
	return func(root any) error {
		filters, _ := adapt.At(root, append(slices.Clip(connectionManager), filtersAt)...).([]any)
		for _, f := range filters {
			if filter, ok := f.(map[string]any); ok && filter["name"] == name && filter["disabled"] == true {
				delete(filter, "disabled")
				return nil
			}
		}
		return fmt.Errorf("there is no filter %s that is disabled", name)
	}
}

// removeFilter removes a filter.
func removeFilter(name string) adapt.Change {
	return func(root any) error {
		m, _ := adapt.At(root, connectionManager...).(map[string]any)
		filters, _ := m[filtersAt].([]any)
		left := slices.DeleteFunc(slices.Clone(filters), func(f any) bool { return adapt.At(f, "name") == name })
		if len(left) == len(filters) {
			return fmt.Errorf("there is no filter %s", name)
		}
		m[filtersAt] = left
		return nil
	}
}

// removeRoutesBy removes the routes that match a header.
func removeRoutesBy(header string) adapt.Change {
	return func(root any) error {
		host, _ := adapt.At(root, append(slices.Clip(connectionManager), "route_config", "virtual_hosts", 0)...).(map[string]any)
		routes, _ := host["routes"].([]any)
		left := slices.DeleteFunc(slices.Clone(routes), func(r any) bool {
			headers, _ := adapt.At(r, "match", "headers").([]any)
			return slices.ContainsFunc(headers, func(h any) bool { return adapt.At(h, "name") == header })
		})
		if len(left) == len(routes) {
			return fmt.Errorf("there is no route by the header %s", header)
		}
		host["routes"] = left
		return nil
	}
}

// insertFilter inserts a filter before ext_proc.
func insertFilter(filter map[string]any) adapt.Change {
	return func(root any) error {
		filters, i := findExtProc(root)
		m, ok := adapt.At(root, connectionManager...).(map[string]any)
		if i < 0 || !ok {
			return fmt.Errorf("there is no filter %s", extProc)
		}
		m[filtersAt] = append(append(append([]any{}, filters[:i]...), filter), filters[i:]...)
		return nil
	}
}

func findExtProc(root any) (filters []any, i int) {
	filters, _ = adapt.At(root, append(slices.Clip(connectionManager), filtersAt)...).([]any)
	for i, f := range filters {
		if adapt.At(f, "name") == extProc {
			return filters, i
		}
	}
	return nil, -1
}

// setField sets the field at a path. The path consists of map keys and list indexes.
func setField(value any, path ...any) adapt.Change {
	return func(root any) error {
		parent, ok := adapt.At(root, path[:len(path)-1]...).(map[string]any)
		key, isKey := path[len(path)-1].(string)
		if !ok || !isKey {
			return fmt.Errorf("there is no %v", path)
		}
		parent[key] = value
		return nil
	}
}

// setEDSCluster makes another cluster the EDS server.
func setEDSCluster(cluster string) adapt.Change {
	return func(root any) error {
		if service, ok := adapt.At(root, "static_resources", "clusters", 0, "eds_cluster_config", "eds_config",
			"api_config_source", "grpc_services", 0, "envoy_grpc").(map[string]any); ok {
			service["cluster_name"] = cluster
		}
		return nil
	}
}

// copyCluster adds a copy of the cluster copied, under another name.
func copyCluster(name, copied string) adapt.Change {
	return func(root any) error {
		resources, _ := adapt.At(root, "static_resources").(map[string]any)
		clusters, _ := resources["clusters"].([]any)
		for _, c := range clusters {
			if adapt.At(c, "name") != name {
				continue
			}
			text, err := json.Marshal(c)
			if err != nil {
				return err
			}
			var another map[string]any
			if err := json.Unmarshal(text, &another); err != nil {
				return err
			}
			another["name"] = copied
			resources["clusters"] = append(clusters, another)
			return nil
		}
		return fmt.Errorf("there is no cluster %s", name)
	}
}

// replaceEverywhere replaces the value from by to in every field with the name key.
func replaceEverywhere(key string, from, to any) adapt.Change {
	var walk func(node any) int
	walk = func(node any) int {
		n := 0
		switch node := node.(type) {
		case map[string]any:
			for k, v := range node {
				if k == key && v == from {
					node[k] = to
					n++
					continue
				}
				n += walk(v)
			}
		case []any:
			for _, v := range node {
				n += walk(v)
			}
		}
		return n
	}
	return func(root any) error {
		if walk(root) == 0 {
			return fmt.Errorf("no %s is %v", key, from)
		}
		return nil
	}
}
