package cost

import (
	"context"
	"fmt"
	"slices"

	"github.com/headgate/headgate/headgate/envoy/adapt"
)

// Paths of more parts of envoy.yaml: its only virtual host, and its clusters.
var (
	virtualHost = append(slices.Clip(manager), "route_config", "virtual_hosts", 0)
	clusters    = []any{"static_resources", "clusters"}
)

// removals returns the gateway without one part of envoy.yaml each, and without all of them; the
// first is the default. Without some of the parts the gateway does not do all that it should. The
// requests of the cells are answered nevertheless.
func removals() []option {
	all := []option{
		{name: "records", title: "access log of extproc", change: withoutAccessLog("envoy.access_loggers.http_grpc")},
		{name: "log", title: "access log for people", change: withoutLog},
		{name: "lua", title: "filter lua of the clusters", change: withoutLua},
		{name: "json", title: "filter json_to_metadata", change: withoutFilters("envoy.filters.http.json_to_metadata")},
		{name: "sse", title: "filter sse_to_metadata", change: withoutFilters("envoy.filters.http.sse_to_metadata")},
		{
			name: "small", title: "filters rbac, cors, header_to_metadata",
			change: withoutFilters("envoy.filters.http.rbac", "envoy.filters.http.cors", "envoy.filters.http.header_to_metadata"),
		},
		{name: "rules", title: "mutation_rules and forward_rules of ext_proc", change: withoutRules},
		{name: "headers", title: "response_headers_to_add", change: withoutFields(virtualHost, "response_headers_to_add")},
		{name: "early", title: "early_header_mutation_extensions", change: withoutFields(manager, "early_header_mutation_extensions")},
		{name: "retries", title: "retry_policy", change: withoutRetries},
	}
	together := option{name: "together", title: "all of these", change: func(root any) error {
		for _, o := range all {
			if err := o.change(root); err != nil {
				return err
			}
		}
		return nil
	}}
	return append(append([]option{{name: "default", title: "default"}}, all...), together)
}

// removed measures the gateway without parts of envoy.yaml beside the default.
func (b *bench) removed(ctx context.Context, r *rigs) error {
	return b.compare(ctx, r, "without a part of envoy.yaml", removals(), switchCells[:1])
}

// withoutFields removes fields of the message at a path.
func withoutFields(path []any, fields ...string) adapt.Change {
	return func(root any) error {
		message, _ := adapt.At(root, path...).(map[string]any)
		for _, field := range fields {
			if _, is := message[field]; !is {
				return fmt.Errorf("%v: %s: %w", path, field, errNoSuchPart)
			}
			delete(message, field)
		}
		return nil
	}
}

// withoutNamed removes the messages with these names from the list at a path.
func withoutNamed(root any, path []any, names ...string) error {
	last := len(path) - 1
	message, _ := adapt.At(root, path[:last]...).(map[string]any)
	list, _ := adapt.At(root, path...).([]any)
	rest := slices.DeleteFunc(slices.Clone(list), func(m any) bool {
		name, _ := adapt.At(m, "name").(string)
		return slices.Contains(names, name)
	})
	if len(rest)+len(names) != len(list) {
		return fmt.Errorf("%v: %v: %w", path, names, errNoSuchPart)
	}
	message[path[last].(string)] = rest
	return nil
}

func withoutAccessLog(name string) adapt.Change {
	return func(root any) error { return withoutNamed(root, accessLogs, name) }
}

// withoutFilters removes HTTP filters, and their settings for routes.
func withoutFilters(names ...string) adapt.Change {
	return func(root any) error {
		routes, _ := adapt.At(root, append(slices.Clip(virtualHost), "routes")...).([]any)
		for _, place := range append(slices.Clone(routes), adapt.At(root, virtualHost...)) {
			settings, _ := adapt.At(place, "typed_per_filter_config").(map[string]any)
			for _, name := range names {
				delete(settings, name)
			}
		}
		return withoutNamed(root, filters, names...)
	}
}

// withoutLua removes the filters of the clusters for endpoints, which read their answers.
func withoutLua(root any) error {
	all, _ := adapt.At(root, clusters...).([]any)
	removed := 0
	for _, cluster := range all {
		options, _ := adapt.At(cluster, "typed_extension_protocol_options",
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions").(map[string]any)
		if _, is := options["http_filters"]; is {
			delete(options, "http_filters")
			removed++
		}
	}
	if removed == 0 {
		return fmt.Errorf("filters of clusters: %w", errNoSuchPart)
	}
	return nil
}

// withoutRules lets ext_proc send all headers to extproc, and set any header.
func withoutRules(root any) error {
	all, _ := adapt.At(root, filters...).([]any)
	for i, f := range all {
		if adapt.At(f, "name") == "envoy.filters.http.ext_proc" {
			return withoutFields(append(slices.Clip(filters), i, "typed_config"), "mutation_rules", "forward_rules")(root)
		}
	}
	return fmt.Errorf("the filter ext_proc: %w", errNoSuchPart)
}

// withoutRetries removes the retries at the next endpoint.
func withoutRetries(root any) error {
	routes, _ := adapt.At(root, append(slices.Clip(virtualHost), "routes")...).([]any)
	removed := 0
	for _, r := range routes {
		if action, is := adapt.At(r, "route").(map[string]any); is {
			delete(action, "retry_policy")
			removed++
		}
	}
	if removed == 0 {
		return fmt.Errorf("retry_policy: %w", errNoSuchPart)
	}
	return nil
}
