// Package configdump prints the effective configuration of a program and the source of each value:
// the output of --explain-config.
package configdump

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Default is the source of a value that was not set.
const Default = "default"

// Setting is one effective value.
type Setting struct {
	Name, Value string
	// From is the value's source: [Default], a flag, an environment variable, or an object with
	// file and line.
	From string
	// Means explains the setting; it may be empty.
	Means string
}

// Command is the flag --explain-config.
type Command struct {
	// On says that the flag was given.
	On    bool
	flags []Setting
	from  map[string]string // source of each flag
}

const flag = "explain-config"

// Register adds the flag.
func (c *Command) Register(fs *pflag.FlagSet) {
	fs.BoolVar(&c.On, flag, false, "print every setting and object in force and where each comes from, then exit")
}

// Note records the values of a parsed command line. From is the source of flags that were not set
// by name, such as "$NAMESPACE". Kubeconfig is the environment variable that replaces the flag of
// that name.
func (c *Command) Note(fs *pflag.FlagSet, from map[string]string, kubeconfig string) {
	c.from = make(map[string]string)
	kube := fs.Lookup("kube")
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == flag || f.Name == "version" || f.Name == "help" {
			return
		}
		source, value := Default, f.Value.String()
		if f.Changed {
			source = "flag --" + f.Name
		}
		if f.Name == "kubeconfig" && value == "" && kubeconfig != "" && kube != nil && kube.Value.String() == "true" {
			source, value = "$KUBECONFIG", kubeconfig
		}
		source = cmp.Or(from[f.Name], source)
		c.from[f.Name] = source
		if many, ok := f.Value.(pflag.SliceValue); ok {
			value = strings.Join(many.GetSlice(), ", ")
		}
		c.flags = append(c.flags, Setting{Name: "--" + f.Name, Value: value, From: source})
	})
}

// From returns the source of a flag's value; flag has no dashes.
func (c *Command) From(flag string) string { return cmp.Or(c.from[flag], Default) }

// Objects is a program's source of objects.
type Objects interface {
	Read(ctx context.Context) (*objects.World, error)
}

// Print reads the objects once and prints the effective configuration. OfPool, which may be nil,
// adds the program's own settings of each pool.
func (c *Command) Print(ctx context.Context, out io.Writer, from Objects, ofPool func(*objects.World, *objects.Pool) []Setting) error {
	w, err := from.Read(ctx)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, Text(c.flags, w, ofPool))
	return err
}

// Text formats flags and the settings in w. ofPool returns a pool's settings, as in
// [Command.Print].
func Text(flags []Setting, w *objects.World, ofPool func(*objects.World, *objects.Pool) []Setting) string {
	var out strings.Builder
	section(&out, "FLAGS", "setting", "value", flags)
	for _, name := range slices.SortedFunc(maps.Keys(w.Pools), objects.Name.Compare) {
		p := w.Pools[name]
		var settings []Setting
		if ofPool != nil {
			settings = ofPool(w, p)
		}
		section(&out, "POOL "+name.String(), "setting", "value", slices.Concat(settings, placement(w, p), declared(w, p)))
	}
	if len(w.Pools) == 0 {
		out.WriteString("no pool\n")
	}
	section(&out, "MODELS THAT REQUESTS MAY NAME", "model", "goes to", routes(w))
	section(&out, "VMODELS", "vmodel", "requests are to go to", vmodels(w))
	section(&out, "MODELS THAT CONTROL LOADS WHERE REQUESTS NEED THEM", "model", "is", catalogue(w))
	if len(w.Problems) > 0 {
		out.WriteString("PROBLEMS\n")
	}
	for _, p := range w.Problems {
		fmt.Fprintf(&out, "  %s\n", p)
	}
	return strings.TrimSuffix(out.String(), "\n") + "\n"
}

// section writes a table with a title, followed by an empty line; nothing if there are no rows.
func section(out *strings.Builder, title, name, value string, rows []Setting) {
	if len(rows) == 0 {
		return
	}
	out.WriteString(title + "\n")
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.StripEscape)
	line := func(s Setting) {
		cells := []string{s.Name, cmp.Or(s.Value, "-"), s.From}
		if s.Means != "" {
			cells = append(cells, s.Means)
		}
		for i, c := range cells {
			if strings.ContainsFunc(c, unicode.IsControl) {
				cells[i] = strconv.Quote(c)
			}
		}
		fmt.Fprintf(table, "  %s\n", strings.Join(cells, "\t"))
	}
	line(Setting{Name: name, Value: value, From: "from"})
	for _, s := range rows {
		line(s)
	}
	_ = table.Flush() // to memory
	out.WriteString("\n")
}

// placement returns a pool's placement settings.
func placement(w *objects.World, p *objects.Pool) []Setting {
	var own v1alpha1.Placement
	if p.Settings != nil && p.Settings.Placement != nil {
		own = *p.Settings.Placement
	}
	setting := func(name, value, fallback, means string) Setting {
		if value == "" {
			return Setting{name, fallback, Default, means}
		}
		return Setting{name, value, w.Where(v1alpha1.PoolSettingsKind, p.SettingsName), means}
	}
	number := func(n *int32) string {
		if n == nil {
			return ""
		}
		return strconv.Itoa(int(*n))
	}
	quantity := func(q *resource.Quantity) string {
		if q == nil {
			return ""
		}
		return q.String()
	}
	models := "1"
	if own.Capacity != nil {
		models = "as many as have room"
	}
	fallback := "as many as the GPU holds"
	if host := number(own.HostAdapters); host != "" {
		fallback = host + ", hostAdapters"
	}
	return []Setting{
		setting("placement.maxAdapters", number(own.MaxAdapters), fallback, "adapters at one endpoint at once"),
		setting("placement.hostAdapters", number(own.HostAdapters), "unknown", "adapters that host memory holds"),
		setting("placement.capacity", quantity(own.Capacity), "none", "memory for models at an engine with a model repository"),
		setting("placement.maxModels", number(own.MaxModels), models, "models at one of these at once"),
		setting("placement.defaultSize", quantity(own.DefaultSize), "1M", "of a model there of which nothing is known"),
		setting("placement.source", own.Source, objects.DefaultSource, "where engines find a model that does not say so itself"),
		setting("placement.management", own.Management, "none", "where control loads and unloads models"),
	}
}

// declared returns the settings of a pool's objects, and its endpoints.
func declared(w *objects.World, p *objects.Pool) []Setting {
	own := w.Where(pool.Kind, p.Name)
	admits := Setting{"admits", "what its endpoints list", own, "models that requests may name"}
	if p.Routed {
		admits.Value, admits.From = "the models of its routes", "LLMRoutes, which name the pool"
	}
	picker := "none"
	if p.Picker.Service != "" {
		picker = p.Picker.Service
		if p.Picker.Port != 0 {
			picker += ":" + strconv.Itoa(int(p.Picker.Port))
		}
	}
	all := []Setting{
		admits,
		{"endpointPickerRef", picker, own, "the Service by which other gateways mean this pool"},
		{"endpoints", strconv.Itoa(len(p.Endpoints)), own, "how many the pool selects"},
	}
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		words := []string{e.Address}
		for _, w := range []struct {
			word string
			says bool
		}{
			{"is " + e.Host, e.Host != ""},
			{string(e.Kind), e.Kind != ""},
			{"not ready", !e.Ready && !e.Terminating},
			{"terminating", e.Terminating},
			{"its node is silent", e.NodeSilent},
			{"managed at " + e.Management, e.Management != ""},
		} {
			if w.says {
				words = append(words, w.word)
			}
		}
		all = append(all, Setting{Name: "endpoint", Value: strings.Join(words, ", "), From: w.WhereOf(e)})
	}
	return all
}

// routes returns the models that requests may name, with the objects that admit them.
func routes(w *objects.World) []Setting {
	all := make([]Setting, 0, len(w.Routes))
	for _, r := range w.Routes {
		var words []string
		for _, b := range r.Backends {
			word := b.Pool.String()
			if len(r.Backends) > 1 {
				word += " by weight " + strconv.Itoa(int(b.Weight))
			}
			words = append(words, word)
		}
		isVModel := slices.ContainsFunc(r.Backends, func(b objects.Backend) bool {
			_, is := w.VModel(objects.ModelKey{Pool: b.Pool, ID: r.Adapter})
			return is
		})
		switch {
		case isVModel:
			words = append(words, "as VModel "+r.Adapter)
		case r.Adapter != "":
			words = append(words, "as "+r.Adapter)
		}
		if r.Priority != 0 {
			words = append(words, "priority "+strconv.Itoa(int(r.Priority)))
		}
		words = append(words, r.Sharing.Described()...)
		for _, o := range r.Objectives {
			word := fmt.Sprintf("%s %v", o.Type, o.Latency.Value.Duration)
			if q := o.Latency.Quantile; q != nil {
				word += fmt.Sprintf(" for %d of %d", q.Numerator, q.Denominator)
			}
			words = append(words, word)
		}
		words = append(words, notes(w, r)...)
		all = append(all, Setting{
			Name:  cmp.Or(strings.Join(r.Models, ", "), "(all taken)"),
			Value: strings.Join(words, ", "), From: w.Where(r.Kind, r.Name),
		})
	}
	return all
}

// vmodels returns the targets of VModels.
func vmodels(w *objects.World) []Setting {
	all := make([]Setting, 0, len(w.VModels))
	for _, v := range w.VModels {
		value := v.Target
		if v.Canary != "" {
			value += fmt.Sprintf(", %d %% to %s", v.Percent, v.Canary)
		}
		if !w.HasItsID(v) {
			value = "nowhere, for another object has its id"
		}
		all = append(all, Setting{Name: v.String(), Value: value, From: w.Where(v1alpha1.VModelKind, v.Object)})
	}
	return all
}

// catalogue returns the models that engines can load.
func catalogue(w *objects.World) []Setting {
	all := make([]Setting, 0, len(w.Catalogue))
	for i := range w.Catalogue {
		e := &w.Catalogue[i]
		copies := "no bound on copies"
		switch {
		case e.Max > 0:
			copies = fmt.Sprintf("%d to %d copies", e.Min, e.Max)
		case e.Min > 0:
			copies = fmt.Sprintf("at least %d copies", e.Min)
		}
		words := []string{e.Type, "source " + e.Source, copies}
		if e.ServiceTime > 0 {
			words = append(words, "service time "+e.ServiceTime.String())
		}
		if e.BaseModel != "" {
			words = append(words, "for "+e.BaseModel)
		}
		if e.Size > 0 {
			words = append(words, strconv.FormatInt(e.Size, 10)+" bytes")
		}
		if e.Pinned {
			words = append(words, "pinned")
		}
		from := Default + ", for the adapter of a route"
		if e.Object != (objects.Name{}) {
			from = w.Where(v1alpha1.ModelKind, e.Object)
		}
		all = append(all, Setting{Name: e.String(), Value: strings.Join(words, ", "), From: from})
	}
	return all
}
