// Package eppflags accepts the flags of other endpoint pickers, so that extproc's image can replace
// theirs in an unchanged Deployment. The pickers are those of the inference extension, of llm-d,
// and of KServe, which runs llm-d's picker.
package eppflags

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
)

// Flag is a flag of other endpoint pickers.
type Flag struct {
	// Name is the flag's name without dashes. A one-letter name may be written with one dash.
	Name string
	// Becomes is the equivalent flag of extproc, without dashes; empty if the other picker's flag
	// is ignored.
	Becomes string
	// Because explains how the value is translated, or why the flag is ignored.
	Because string

	bare      bool // the value may be omitted
	translate func(value string, set func(flag, value string) error) error
}

// same creates a Flag that extproc also has, with the same name and meaning.
func same(name, because string) Flag { return Flag{Name: name, Becomes: name, Because: because} }

func ignored(name, because string) Flag { return Flag{Name: name, Because: because} }

// ignoredSwitch returns a boolean Flag that is ignored; its value may be omitted.
func ignoredSwitch(name, because string) Flag { return Flag{Name: name, Because: because, bare: true} }

const (
	logIsJSON    = "the log has one JSON object per line"
	ownMetrics   = "extproc has built-in metric names for each kind of engine"
	fixedNames   = "the endpoint-picker protocol defines this name"
	openMetrics  = "`/metrics` has neither TLS nor tokens: restrict access with a NetworkPolicy"
	wholeMessage = "a message may be as long as the largest body that extproc accepts"
)

// Flags lists all supported flags in the order of the documentation: those of the inference
// extension up to 1.6 and of llm-d's picker up to 0.10.
var Flags = []Flag{
	same("pool-name",
		"without `--objects`, `--kube` and `--endpoints`, extproc reads the objects of the pool's namespace from the API server"),
	same("pool-namespace", "the default is `$NAMESPACE`, or else `default`"),
	same("grpc-port", ""),
	same("grpc-health-port", ""),
	same("metrics-port", ""),
	same("secure-serving", "to disable it, use `--secure-serving=false`"),
	same("cert-path", ""),
	same("drain-timeout", ""),
	same("kubeconfig", ""),
	{Name: "v", Becomes: "log-level", Because: "4 and above means `debug`, less means `info`", translate: verbosity},
	{
		Name: "zap-log-level", Becomes: "log-level", Because: "`panic` means `error`; a number means the same as with `-v` and overrides it",
		translate: zapLevel,
	},
	{Name: "refresh-metrics-interval", Becomes: "scrape-interval", Because: "the interval at which extproc scrapes the load of each engine in use; idle engines are scraped once a second"},
	{
		Name: "metrics-staleness-threshold", Becomes: "stale-after",
		Because: "after this time without an answer, an endpoint gets requests only if no other can serve them",
	},
	{
		Name: "model-server-metrics-scheme", Becomes: "engine-tls",
		Because:   "`https` connects to engines over TLS without verifying certificates, unless `--engine-ca-file` or the next flag is set",
		translate: scheme,
	},
	{
		Name: "model-server-metrics-https-insecure-skip-verify", Becomes: "engine-insecure-skip-verify",
		Because: "true by default, as in other pickers; it has no effect without `https`", bare: true,
		translate: func(string, func(string, string) error) error { return nil }, // function scheme reads the value
	},
	ignored("config-file", "`--policy` or a PoolSettings chooses the policy"),
	ignored("config-text", "`--policy` or a PoolSettings chooses the policy"),
	ignored("pool-group", "extproc reads InferencePools of `inference.networking.k8s.io`"),
	ignored("model-server-metrics-port", "extproc scrapes an engine at the port where it serves"),
	ignored("model-server-metrics-path", ownMetrics),
	ignored("total-queued-requests-metric", ownMetrics),
	ignored("total-running-requests-metric", ownMetrics),
	ignored("kv-cache-usage-percentage-metric", ownMetrics),
	ignored("lora-info-metric", ownMetrics),
	ignored("cache-info-metric", ownMetrics),
	ignored("refresh-prometheus-metrics-interval", "`/metrics` is always current"),
	ignoredSwitch("metrics-endpoint-auth", openMetrics),
	ignored("metrics-client-ca-file", openMetrics),
	ignored("metrics-cert-dir", openMetrics),
	ignoredSwitch("ha-enable-leader-election", "every replica serves; there is no leader"),
	ignoredSwitch("health-checking", "extproc always serves gRPC health checks"),
	ignoredSwitch("enable-cert-reload", "extproc always reloads changed certificates"),
	ignored("grpc-max-recv-msg-size", wholeMessage),
	ignored("grpc-max-send-msg-size", wholeMessage),
	ignoredSwitch("disable-endpoint-subset-filter",
		"extproc always honors the gateway's subset, as the endpoint-picker protocol requires"),
	ignored("destination-endpoint-hint-key", fixedNames),
	ignored("destination-endpoint-hint-metadata-namespace", fixedNames),
	ignored("fairness-id-header-key", "extproc does not implement fairness between clients"),
	same("emit-endpoint-scores",
		"a score is the predicted time to first token in seconds, so less is better; only of the picks and the runner-up, with policy `latency`"),
	ignoredSwitch("allow-experimental-plugins", "extproc has no plugins"),
	ignoredSwitch("enable-grpc-stream-metrics", "`/metrics` always has all metrics"),
	ignoredSwitch("tracing", "extproc does not export traces"),
	ignoredSwitch("enable-pprof", "extproc does not serve pprof"),
	ignored("zap-encoder", logIsJSON),
	ignoredSwitch("zap-devel", logIsJSON),
	ignored("zap-stacktrace-level", logIsJSON),
	ignored("zap-time-encoding", logIsJSON),
}

// Register adds to fs the flags that it lacks, hidden from --help. It also accepts names in the
// style before version 1.0 of the inference extension, such as --poolName.
func Register(fs *pflag.FlagSet) {
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if today := withDashes(name); find(today) != nil {
			name = today
		}
		return pflag.NormalizedName(name)
	})
	for _, f := range Flags {
		if fs.Lookup(f.Name) != nil {
			continue
		}
		shorthand := ""
		if len(f.Name) == 1 {
			shorthand = f.Name
		}
		made := fs.VarPF(new(given), f.Name, shorthand, f.Because)
		made.Hidden = true
		if f.bare {
			made.NoOptDefVal = "true"
		}
	}
}

// given is the value of a flag, as written on the command line.
type given string

func (g *given) Set(value string) error { *g = given(value); return nil }
func (g *given) String() string         { return string(*g) }
func (g *given) Type() string           { return "string" }

// Args joins a separate value to an ignored switch ("--tracing false" becomes "--tracing=false"),
// because other pickers accept such a value. For other switches the value stays separate, so that
// extproc rejects it and asks what was meant.
func Args(args []string) []string {
	var joined []string
	for i := 0; i < len(args); i++ {
		name, isFlag := strings.CutPrefix(args[i], "--")
		if f := find(withDashes(name)); isFlag && f != nil && f.bare && f.Becomes == "" && i+1 < len(args) && isBool(args[i+1]) {
			joined = append(joined, args[i]+"="+args[i+1])
			i++
			continue
		}
		joined = append(joined, args[i])
	}
	return joined
}

func isBool(text string) bool {
	_, err := strconv.ParseBool(text)
	return err == nil && len(text) > 1 // 0 and 1 are numbers, not switch values
}

// Applied is the effect of other pickers' flags on a command line.
type Applied struct {
	// Ignored are the flags on the command line that have no effect, with dashes, in the order of
	// [Flags].
	Ignored []string
	// By maps each flag of extproc to the other picker's flag, with dashes, that set it.
	By map[string]string
}

// Apply sets extproc's flags from the parsed flags of other pickers. A flag of extproc on the
// command line takes precedence.
func Apply(fs *pflag.FlagSet) (Applied, error) {
	a := Applied{By: make(map[string]string)}
	own := make(map[string]bool)
	fs.Visit(func(f *pflag.Flag) { own[f.Name] = true })
	for _, f := range Flags {
		if !own[f.Name] || f.Becomes == f.Name {
			continue
		}
		if f.Becomes == "" {
			a.Ignored = append(a.Ignored, f.written())
			continue
		}
		translate := f.translate
		if translate == nil {
			translate = func(value string, set func(string, string) error) error { return set(f.Becomes, value) }
		}
		if err := translate(fs.Lookup(f.Name).Value.String(), func(flag, value string) error {
			if own[flag] {
				return nil
			}
			a.By[flag] = f.written()
			return fs.Set(flag, value)
		}); err != nil {
			return a, fmt.Errorf("%s: %w", f.written(), err)
		}
	}
	return a, a.trust(fs, own)
}

// trust turns off the verification of engines' certificates if --model-server-metrics-scheme
// enabled TLS and no flag says how to verify them.
func (a Applied) trust(fs *pflag.FlagSet, own map[string]bool) error {
	const skip = "model-server-metrics-https-insecure-skip-verify"
	if fs.Lookup("engine-tls").Value.String() != "true" || a.By["engine-tls"] == "" || own["engine-ca-file"] ||
		own["engine-insecure-skip-verify"] {
		return nil
	}
	value := "true"
	if own[skip] {
		value = fs.Lookup(skip).Value.String()
	}
	a.By["engine-insecure-skip-verify"] = a.By["engine-tls"]
	if err := fs.Set("engine-insecure-skip-verify", value); err != nil {
		return fmt.Errorf("--%s: %w", skip, err)
	}
	return nil
}

func (f Flag) written() string { return "--" + f.Name }

func find(name string) *Flag {
	i := slices.IndexFunc(Flags, func(f Flag) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &Flags[i]
}

// withDashes converts poolName to pool-name.
func withDashes(name string) string {
	var b strings.Builder
	for _, c := range name {
		if unicode.IsUpper(c) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// debugVerbosity is the lowest verbosity at which other pickers log debug output.
const debugVerbosity = 4

func verbosity(value string, set func(flag, value string) error) error {
	n, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("%q is not a number", value)
	}
	if n >= debugVerbosity {
		return set("log-level", "debug")
	}
	return set("log-level", "info")
}

func zapLevel(value string, set func(flag, value string) error) error {
	switch value = strings.ToLower(value); value {
	case "debug", "info", "warn", "error":
		return set("log-level", value)
	case "panic":
		return set("log-level", "error")
	}
	if err := verbosity(value, set); err != nil {
		return fmt.Errorf("want debug, info, error, panic or a number, not %q", value)
	}
	return nil
}

func scheme(value string, set func(flag, value string) error) error {
	switch value {
	case "http":
		return set("engine-tls", "false")
	case "https":
		return set("engine-tls", "true")
	}
	return fmt.Errorf("want http or https, not %q", value)
}
