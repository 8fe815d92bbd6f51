package envoy

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Change modifies a configuration, given as maps, slices and scalars.
type Change func(root any) error

var (
	manager   = []any{"static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config"}
	filtersAt = "http_filters"
)

const extProc = "envoy.filters.http.ext_proc"

// ExtProc sets fields of the ext_proc filter. A nil value removes a field.
func ExtProc(fields map[string]any) Change {
	return func(root any) error {
		filters, i := find(root)
		if i < 0 {
			return fmt.Errorf("there is no filter %s", extProc)
		}
		config, ok := at(filters[i], "typed_config").(map[string]any)
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

// Enable enables a disabled filter.
func Enable(name string) Change {
	return func(root any) error {
		filters, _ := at(root, append(slices.Clip(manager), filtersAt)...).([]any)
		for _, f := range filters {
			if filter, ok := f.(map[string]any); ok && filter["name"] == name && filter["disabled"] == true {
				delete(filter, "disabled")
				return nil
			}
		}
		return fmt.Errorf("there is no filter %s that is disabled", name)
	}
}

// Without removes a filter.
func Without(name string) Change {
	return func(root any) error {
		m, _ := at(root, manager...).(map[string]any)
		filters, _ := m[filtersAt].([]any)
		left := slices.DeleteFunc(slices.Clone(filters), func(f any) bool { return at(f, "name") == name })
		if len(left) == len(filters) {
			return fmt.Errorf("there is no filter %s", name)
		}
		m[filtersAt] = left
		return nil
	}
}

// WithoutRoutesBy removes the routes that match a header.
func WithoutRoutesBy(header string) Change {
	return func(root any) error {
		host, _ := at(root, append(slices.Clip(manager), "route_config", "virtual_hosts", 0)...).(map[string]any)
		routes, _ := host["routes"].([]any)
		left := slices.DeleteFunc(slices.Clone(routes), func(r any) bool {
			headers, _ := at(r, "match", "headers").([]any)
			return slices.ContainsFunc(headers, func(h any) bool { return at(h, "name") == header })
		})
		if len(left) == len(routes) {
			return fmt.Errorf("there is no route by the header %s", header)
		}
		host["routes"] = left
		return nil
	}
}

// Before inserts a filter before ext_proc.
func Before(filter map[string]any) Change {
	return func(root any) error {
		filters, i := find(root)
		m, ok := at(root, manager...).(map[string]any)
		if i < 0 || !ok {
			return fmt.Errorf("there is no filter %s", extProc)
		}
		m[filtersAt] = append(append(append([]any{}, filters[:i]...), filter), filters[i:]...)
		return nil
	}
}

func find(root any) (filters []any, i int) {
	filters, _ = at(root, append(slices.Clip(manager), filtersAt)...).([]any)
	for i, f := range filters {
		if at(f, "name") == extProc {
			return filters, i
		}
	}
	return nil, -1
}

// Set sets the field at a path of keys and indexes.
func Set(value any, path ...any) Change {
	return func(root any) error {
		parent, ok := at(root, path[:len(path)-1]...).(map[string]any)
		key, isKey := path[len(path)-1].(string)
		if !ok || !isKey {
			return fmt.Errorf("there is no %v", path)
		}
		parent[key] = value
		return nil
	}
}

// EndpointsFrom makes another cluster the EDS server.
func EndpointsFrom(cluster string) Change {
	return func(root any) error {
		if service, ok := at(root, slices.Concat(edsConfig,
			[]any{"api_config_source", "grpc_services", 0, "envoy_grpc"})...).(map[string]any); ok {
			service["cluster_name"] = cluster
		}
		return nil
	}
}

// Twice adds a copy of a cluster with another name.
func Twice(name, copied string) Change {
	return func(root any) error {
		resources, _ := at(root, "static_resources").(map[string]any)
		clusters, _ := resources["clusters"].([]any)
		for _, c := range clusters {
			if at(c, "name") != name {
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

// Everywhere replaces a value of each field with a name.
func Everywhere(key string, from, to any) Change {
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
