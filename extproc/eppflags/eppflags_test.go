package eppflags_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/extproc/eppflags"
)

// own returns a flag set with the flags of extproc that flags of other pickers translate to.
func own() *pflag.FlagSet {
	fs := pflag.NewFlagSet("extproc", pflag.ContinueOnError)
	fs.Usage = func() {}
	for _, name := range []string{"pool-name", "pool-namespace", "cert-path", "kubeconfig", "log-level", "engine-ca-file"} {
		fs.String(name, "", "")
	}
	for _, name := range []string{"grpc-port", "grpc-health-port", "metrics-port"} {
		fs.Int(name, 0, "")
	}
	for _, name := range []string{"drain-timeout", "scrape-interval", "stale-after"} {
		fs.Duration(name, 0, "")
	}
	for _, name := range []string{"secure-serving", "engine-tls", "engine-insecure-skip-verify"} {
		fs.Bool(name, false, "")
	}
	eppflags.Register(fs)
	return fs
}

// read parses a command line. It returns the flags of extproc that the line sets, and the ignored
// flags.
func read(args ...string) string {
	fs := own()
	if err := fs.Parse(eppflags.Args(args)); err != nil {
		return "error: " + err.Error()
	}
	applied, err := eppflags.Apply(fs)
	if err != nil {
		return "error: " + err.Error()
	}
	var words []string
	fs.Visit(func(f *pflag.Flag) {
		if !f.Hidden {
			words = append(words, f.Name+"="+f.Value.String())
		}
	})
	if len(applied.Ignored) > 0 {
		words = append(words, "ignored "+strings.Join(applied.Ignored, " "))
	}
	for _, flag := range slices.Sorted(maps.Keys(applied.By)) {
		words = append(words, flag+" by "+applied.By[flag])
	}
	return strings.Join(append(words, fs.Args()...), "; ")
}

func TestFlagsOfOtherPickers(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--pool-name llama --grpc-port 9002", "grpc-port=9002; pool-name=llama"},
		{
			"--poolName=llama --grpcHealthPort 9003 --secureServing --configFile /x",
			"grpc-health-port=9003; pool-name=llama; secure-serving=true; ignored --config-file",
		},
		{"-v 4", "log-level=debug; log-level by --v"},
		{"-v=4", "log-level=debug; log-level by --v"},
		{"-v4", "log-level=debug; log-level by --v"},
		{"--v 5", "log-level=debug; log-level by --v"},
		{"--v=3", "log-level=info; log-level by --v"},
		{"-v x", `error: --v: "x" is not a number`},
		{"-v 1 --zap-log-level debug", "log-level=debug; log-level by --zap-log-level"},
		{"--zap-log-level=5", "log-level=debug; log-level by --zap-log-level"},
		{"--zap-log-level=panic", "log-level=error; log-level by --zap-log-level"},
		{"--zap-log-level loud", `error: --zap-log-level: want debug, info, error, panic or a number, not "loud"`},
		{"-v 4 --log-level warn", "log-level=warn"},
		{
			"--refresh-metrics-interval 5s --metrics-staleness-threshold=30s",
			"scrape-interval=5s; stale-after=30s; scrape-interval by --refresh-metrics-interval; stale-after by --metrics-staleness-threshold",
		},
		{
			"--refresh-metrics-interval soon",
			`error: --refresh-metrics-interval: invalid argument "soon" for "--scrape-interval" flag: time: invalid duration "soon"`,
		},
		{"--model-server-metrics-scheme http", "engine-tls=false; engine-tls by --model-server-metrics-scheme"},
		{
			"--model-server-metrics-scheme https",
			"engine-insecure-skip-verify=true; engine-tls=true; engine-insecure-skip-verify by --model-server-metrics-scheme; engine-tls by --model-server-metrics-scheme",
		},
		{
			"--model-server-metrics-scheme https --model-server-metrics-https-insecure-skip-verify=false",
			"engine-insecure-skip-verify=false; engine-tls=true; engine-insecure-skip-verify by --model-server-metrics-scheme; engine-tls by --model-server-metrics-scheme",
		},
		{
			"--model-server-metrics-scheme https --engine-ca-file x",
			"engine-ca-file=x; engine-tls=true; engine-tls by --model-server-metrics-scheme",
		},
		{"--model-server-metrics-https-insecure-skip-verify --engine-tls", "engine-tls=true"},
		{"--model-server-metrics-scheme ftp", `error: --model-server-metrics-scheme: want http or https, not "ftp"`},
		{"--tracing --enable-pprof=false --ha-enable-leader-election", "ignored --ha-enable-leader-election --tracing --enable-pprof"},
		{"--tracing false --zap-devel true --pool-name x", "pool-name=x; ignored --tracing --zap-devel"},
		{"--secure-serving false", "secure-serving=true; false"}, // extproc rejects the separate value
		{"--zap-encoder json --tracing 1", "ignored --tracing --zap-encoder; 1"},
		{
			"--config-text kind:EndpointPickerConfig --lora-info-metric= --pool-name x",
			"pool-name=x; ignored --config-text --lora-info-metric",
		},
		{"--endpoint-selector app=x", "error: unknown flag: --endpoint-selector"},
		{"--Pool-name x", "error: unknown flag: --Pool-name"},
		{"--nonsense", "error: unknown flag: --nonsense"},
		{"-poolName x", "error: unknown shorthand flag: 'p' in -poolName"},
	} {
		if got := read(strings.Fields(c.args)...); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.args, got, c.want)
		}
	}
	if got := own().FlagUsages(); strings.Contains(got, "zap") {
		t.Errorf("--help lists flags of other pickers:\n%s", got)
	}
}

// The documentation's table lists every flag.
func TestDocumentationListsEveryFlag(t *testing.T) {
	var table strings.Builder
	table.WriteString("| flag | extproc's flag | notes |\n|---|---|---|\n")
	for _, f := range eppflags.Flags {
		name, becomes := "`--"+f.Name+"`", "ignored"
		if len(f.Name) == 1 {
			name += ", `-" + f.Name + "`"
		}
		switch f.Becomes {
		case "":
		case f.Name:
			becomes = "the same"
		default:
			becomes = "`--" + f.Becomes + "`"
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", name, becomes, f.Because)
	}
	text, err := os.ReadFile("../../docs/gateways.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n"+table.String()+"\n") {
		t.Errorf("the table in docs/gateways.md differs from this one:\n%s", table.String())
	}
	for _, f := range eppflags.Flags {
		if args := "--" + f.Name + "=1"; strings.HasPrefix(read(args), "error: unknown") {
			t.Errorf("%s is unknown", args)
		}
	}
}
