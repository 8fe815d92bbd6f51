package cost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/headgate/headgate/headgate/envoy/adapt"
)

// option is a setting of the gateway that may differ from the default.
type option struct {
	name, title string
	flags       []string     // of extproc
	objects     string       // YAML, for extproc
	change      adapt.Change // of envoy.yaml
}

const poolSettings = "apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: endpoints}\n" +
	"spec: {poolRef: {name: endpoints}, %s}\n"

const limitedRoute = "apiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: base}\nspec:\n" +
	"  modelNames: [" + modelName + "]\n  backendRefs: [{name: endpoints}]\n  tenantHeader: x-tenant-id\n" +
	"  limits: {tenant: {concurrent: 1000000, requestsPerMinute: 1000000000, tokensPerMinute: 2000000000}}\n"

// options returns the settings to measure; the first is the default. Sink is the URL of a server
// that accepts payloads.
func options(sink string) []option {
	return []option{
		{name: "default", title: "default"},
		{name: "flow", title: "flow: {mode: Off}", objects: fmt.Sprintf(poolSettings, `flow: {mode: "Off"}`)},
		{name: "proposal", title: "--policy proposal", flags: []string{"--policy", "proposal"}},
		{name: "one", title: "--endpoints-per-request 1", flags: []string{"--endpoints-per-request", "1"}},
		{name: "explain", title: "--explain-picks", flags: []string{"--explain-picks"}},
		{name: "scores", title: "--emit-endpoint-scores", flags: []string{"--emit-endpoint-scores"}},
		{name: "limits", title: "a route with tenants and limits", objects: limitedRoute},
		{
			name: "payloads", title: "--payload-processor, and the filter payloads",
			flags: []string{"--payload-processor", sink}, change: withPayloads,
		},
		{name: "log", title: "without Envoy's log for people", change: withoutLog},
	}
}

// Paths of parts of envoy.yaml: the connection manager, its HTTP filters, and its access logs.
var (
	manager    = []any{"static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config"}
	filters    = append(slices.Clip(manager), "http_filters")
	accessLogs = append(slices.Clip(manager), "access_log")
)

var errNoSuchPart = errors.New("the configuration has no such part")

// withPayloads enables the filter that sends copies of requests and answers.
func withPayloads(root any) error {
	all, _ := adapt.At(root, filters...).([]any)
	for _, f := range all {
		if f, ok := f.(map[string]any); ok && f["name"] == "payloads" {
			delete(f, "disabled")
			return nil
		}
	}
	return fmt.Errorf("the filter payloads: %w", errNoSuchPart)
}

// withoutLog removes the access log on standard output.
func withoutLog(root any) error { return withoutNamed(root, accessLogs, "envoy.access_loggers.stdout") }

// switchCells are the loads with which settings are compared.
var switchCells = []cell{
	{"1KB-32", "1 KB, 32 clients", shape{size: 1 << 10}, 32, 6000, false},
	{"100KB-32", "100 KB, 32 clients", shape{size: 100 << 10}, 32, 1800, false},
}

// switches measures the gateway with each setting beside the default.
func (b *bench) switches(ctx context.Context, r *rigs) error {
	measured := switchCells
	if b.short {
		measured = switchCells[:1]
	}
	return b.compare(ctx, r, "price of a switch", options("http://"+r.engines[0]+sinkPath), measured)
}

// compare measures the gateway with each option beside the first, as the part requests does, and
// prints a table for each cell.
func (b *bench) compare(ctx context.Context, r *rigs, title string, all []option, measured []cell) error {
	rounds, measured := min(b.rounds, 3), slices.Clone(measured)
	if b.short {
		rounds = 1
		for i := range measured {
			measured[i].requests /= 3
		}
	}
	var shown []variant
	defer func() {
		for _, g := range r.started {
			g.close()
		}
		r.started = nil
	}()
	for i, o := range all {
		v := variant{o.name, o.title, func(ctx context.Context, r *rigs, at place) (*gateway, error) { return r.withOption(ctx, at, o) }}
		b.report("starting the gateway: %s", o.title)
		if err := r.start(ctx, v, i); err != nil {
			return fmt.Errorf("%s: %w", o.title, err)
		}
		shown = append(shown, v)
	}
	is := make(results)
	for n := range rounds {
		if err := r.round(ctx, n, rounds, measured, shown, r.started, is); err != nil {
			return err
		}
	}
	is.switchTable(b.out, title, measured, shown)
	fmt.Fprintf(b.out, "Medians of %d rounds.\n\n", rounds)
	return nil
}

// withOption starts the gateway with a setting.
func (r *rigs) withOption(ctx context.Context, at place, o option) (*gateway, error) {
	p := r.beside().with(o.flags...)
	if o.objects != "" {
		dir := filepath.Join(at.dir, "objects")
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(o.objects), 0o644); err != nil {
			return nil, err
		}
		p = p.with("--objects", dir)
	}
	var changes []adapt.Change
	if o.change != nil {
		changes = append(changes, o.change)
	}
	return r.whole(ctx, at, p, r.engines, changes...)
}

// switchTable prints the figures of variants beside those of the first, under a title.
func (r results) switchTable(w io.Writer, title string, cells []cell, shown []variant) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range cells {
		fmt.Fprintf(t, "%s: %s\tboth / default\t", title, c.title)
		for _, col := range columns {
			fmt.Fprintf(t, "%s\t", col.name)
		}
		fmt.Fprintln(t)
		for _, v := range shown {
			all, base := r[c.name][v.name], r[c.name][shown[0].name]
			fmt.Fprintf(t, "  %s\t%s\t", v.title, ratioOf(figures(all, sample.both), figures(base, sample.both)).text("%.2f", 1))
			for _, col := range columns {
				fmt.Fprintf(t, "%s\t", spreadOf(figures(all, col.of)).text(col.format, col.unit))
			}
			fmt.Fprintln(t)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}
