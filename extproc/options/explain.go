package options

import (
	"maps"
	"os"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/configdump"
	"github.com/headgate/headgate/internal/objects"
)

// noteFlags records the values of flags. If a value comes from another flag or from an environment
// variable, it records that source, too.
func (c *Options) noteFlags(fs *pflag.FlagSet) {
	from := make(map[string]string)
	for flag, by := range maps.All(c.Theirs.By) {
		from[flag] = "flag " + by
	}
	if !fs.Changed("pool-namespace") && os.Getenv("NAMESPACE") != "" { //nolint:forbidigo // main
		from["pool-namespace"] = "$NAMESPACE"
	}
	if c.Kube.On && !fs.Changed("kube") {
		from["kube"], from["namespace"] = "flag --pool-name", "flag --pool-name"
	}
	for _, flag := range []string{"grpc-port", "grpc-health-port"} {
		if len(c.Serve.Own) > 0 && !fs.Changed(flag) {
			from[flag] = "flag --listen"
		}
	}
	if !fs.Changed("lost-after") && fs.Changed("stale-after") && c.Settings.LostAfter == c.Settings.StaleAfter {
		from["lost-after"] = "flag --stale-after"
	}
	c.Explain.Note(fs, from, os.Getenv("KUBECONFIG")) //nolint:forbidigo // main
}

// ExplainPool returns the effective settings of a pool, each with its source: a flag, or the pool's
// PoolSettings.
func (c Options) ExplainPool(w *objects.World, p *objects.Pool) []configdump.Setting {
	var all []configdump.Setting
	for _, l := range c.Settings.Lines(p) {
		from := configdump.Default
		switch {
		case l.Own:
			from = w.Where(v1alpha1.PoolSettingsKind, p.SettingsName)
		case l.Flag != "":
			from = c.Explain.From(l.Flag)
		}
		all = append(all, configdump.Setting{Name: l.Name, Value: l.Value, From: from, Means: l.Means})
	}
	return all
}
