package options

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/internal/version"
)

func TestCommandLine(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "no engines: set --objects DIR (a folder with YAML), --kube (an API server) or --endpoints HOST:PORT; see extproc --help"},
		{
			"--kube --objects x --listen y",
			"--kube and --objects: objects come from an API server or from a folder; leave one of them out; see extproc --help",
		},
		{"--endpoints a:1 --namespace x --listen y", "--kubeconfig and --namespace need --kube; see extproc --help"},
		{
			"--endpoints a:1 --endpoints b:2,c --listen y",
			`--endpoints "c": want host:port, such as 10.0.0.7:8000, [fd00::7]:8000 or engine-1.internal:8000; see extproc --help`,
		},
		{
			"--endpoints [::ffff:169.254.169.254]:80 --listen y",
			`--endpoints "[::ffff:169.254.169.254]:80": an engine's address must not be link-local, multicast, broadcast or unspecified; see extproc --help`,
		},
		{
			"--objects x --grpc-port -1",
			"nothing to serve: set --listen unix:PATH for Headgate's own Envoy, or --grpc-port for other gateways; see extproc --help",
		},
		{"--objects x --grpc-port 65536", "--grpc-port 65536 is not a port; see extproc --help"},
		{"--objects x --endpoints-per-request 9", "--endpoints-per-request 9: it must be 1 to 8; see extproc --help"},
		{"--objects x --in-flight-timeout 0s", "--in-flight-timeout 0s: it must be above 0; see extproc --help"},
		{"--objects x --listen y z", `unexpected argument "z": set everything by flags; see extproc --help`},
		{
			"--objects x --listen y --policy best",
			`unknown policy "best": use one of proposal, leastRequest, roundRobin, random, latency; see extproc --help`,
		},
		{"--objects x --listen y --adapter-threshold 0", "--adapter-threshold 0: it must be at least 1; see extproc --help"},
		{"--objects x --listen y --prefix-cache-bytes 0", "--prefix-cache-bytes 0: it must be at least 1; see extproc --help"},
		{"--objects x --listen y --endpoints-per-request 0", "--endpoints-per-request 0: it must be 1 to 8; see extproc --help"},
		{"--objects x --listen y --metrics-port 70000", "--metrics-port 70000 is not a port; see extproc --help"},
		{
			"--objects x --listen y --scrape-interval 1ms",
			"--scrape-interval and --models-scrape-interval must be at least 10ms, so as not to overload the engines; see extproc --help",
		},
		{"--endpoints a:1 --listen y --engine-ca-file x", "--engine-ca-file needs --engine-tls; see extproc --help"},
		{
			"--endpoints a:1 --listen y --engine-insecure-skip-verify",
			"--engine-insecure-skip-verify needs --engine-tls; see extproc --help",
		},
		{
			"--endpoints a:1 --listen y --engine-tls --engine-ca-file x --engine-insecure-skip-verify",
			"--engine-insecure-skip-verify and --engine-ca-file exclude each other: leave one of them out; see extproc --help",
		},
		{
			"--kube --listen y --engine-token-file x",
			"--engine-token-file does not work with --kube, where each pool has its own token: name a Secret in spec.engineToken of its PoolSettings; see extproc --help",
		},
		{
			"--kube --endpoints a:1 --listen y --engine-token-file x",
			"--engine-token-file does not work with --kube, where each pool has its own token: name a Secret in spec.engineToken of its PoolSettings; see extproc --help",
		},
		{"--objects x --listen y --max-queue-time 0s", "--max-queue-time 0s: it must be above 0; see extproc --help"},
		{
			"--objects x --listen y --max-queued 0",
			"--max-queued 0, --max-queued-mib 512: both must be at least 1; see extproc --help",
		},
		{"--objects x --listen y --processors -1", "--processors -1: it must not be negative; see extproc --help"},
		{
			"--objects x --listen y --control-ca-file z",
			"--control-ca-file, --control-token-file, --control-cert-path and --mesh-token-file need --control; see extproc --help",
		},
		{"--objects x --listen y --control-lost 1s", "--control-lost 1s: it must be at least 3s; see extproc --help"},
		{"--nonsense", "unknown flag: --nonsense; see extproc --help"},
		{
			"--objects x --stale-after 0s",
			"--stale-after 0s, --lost-after 10s: the first must be above 0, and the second at least as long; see extproc --help",
		},
		{
			"--objects x --stale-after 3s --lost-after 2s",
			"--stale-after 3s, --lost-after 2s: the first must be above 0, and the second at least as long; see extproc --help",
		},
		{"--pool-name x --secure-serving false", `unexpected argument "false": write --flag=false; see extproc --help`},
		{"--pool-name x -v much", `--v: "much" is not a number; see extproc --help`},
		{
			"--zap-encoder json",
			"no engines: set --objects DIR (a folder with YAML), --kube (an API server) or --endpoints HOST:PORT; see extproc --help",
		},
	} {
		_, err := Parse(strings.Fields(c.args), io.Discard)
		if err == nil || err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
	}
	if c, err := Parse([]string{"--objects", "x", "--stale-after", "30s"}, io.Discard); err != nil ||
		c.Settings.StaleAfter != 30*time.Second ||
		c.Settings.LostAfter != 30*time.Second {
		t.Errorf("with --stale-after above the default of --lost-after: %v, %v and %v", err, c.Settings.StaleAfter, c.Settings.LostAfter)
	}
	for args, want := range map[string]source.Kube{
		"--pool-name x":                                  {On: true, Namespace: "default"},
		"--pool-name x --pool-namespace y":               {On: true, Namespace: "y"},
		"--pool-name x --kubeconfig k --namespace y":     {On: true, Namespace: "y", Config: "k"},
		"--pool-name x --pool-namespace y --kube":        {On: true},
		"--pool-name x --pool-namespace y --objects dir": {},
	} {
		if c, err := Parse(strings.Fields(args), io.Discard); err != nil || c.Kube != want {
			t.Errorf("%s: %v, the source of objects is %+v, want %+v", args, err, c.Kube, want)
		}
	}
	var help bytes.Buffer
	if _, err := Parse([]string{"--help"}, &help); !errors.Is(err, pflag.ErrHelp) ||
		!strings.Contains(help.String(), "--adapter-threshold") || !strings.Contains(help.String(), "Example") {
		t.Errorf("--help: %v\n%s", err, help.String())
	}
	var own bytes.Buffer
	if _, err := Parse([]string{"--version"}, &own); !errors.Is(err, pflag.ErrHelp) || own.String() != "extproc "+
		version.Read().String()+"\n" {
		t.Errorf("--version: %v, %q", err, own.String())
	}
}
