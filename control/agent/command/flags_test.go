package command

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/test/surface"
)

func noEnvironment(string) string { return "" }

func environment(all map[string]string) func(string) string {
	return func(name string) string { return all[name] }
}

// mlserver is a command line for an engine that has an adapter in ModelMesh.
const mlserver = "--kind mlserver --management :8086 "

// Each environment variable of ModelMesh's adapters sets its flag, and the command line wins.
func TestEnvironmentSetsFlags(t *testing.T) {
	const helper, driven = "--kind modelruntime --data :8001 ", "--kind mlserver --data :8001 "
	for _, c := range []struct {
		name, value string
		line        string // the rest of the command line
		flag        string // the flag with another value, which wins
		of          func(c config) any
		want        any
		wins        any // the value of the flag
	}{
		{"ROOT_MODEL_DIR", "/m", helper, "--models-dir=/n", func(c config) any { return c.modelsDir }, "/m", "/n"},
		{"STORAGE_CONFIG_DIR", "/s", helper, "--storage-config=/n", func(c config) any { return c.storageConfig }, "/s", "/n"},
		{"PVC_MOUNTS_DIR", "/p", helper, "--pvc-dir=/n", func(c config) any { return c.claimsDir }, "/p", "/n"},
		{"PORT", "8084", helper, "--management=:1", func(c config) any { return c.management }, ":8084", ":1"},
		{"ADAPTER_PORT", "8085", driven, "--management=:1", func(c config) any { return c.management }, ":8085", ":1"},
		{
			"MODEL_SERVER_ENDPOINT", "port:8085", helper, "--engine=port:1", func(c config) any { return c.at.String() },
			"127.0.0.1:8085", "127.0.0.1:1",
		},
		{"RUNTIME_PORT", "8001", driven, "--engine=port:1", func(c config) any { return c.at.String() }, "127.0.0.1:8001", "127.0.0.1:1"},
		{
			"RUNTIME_DATA_ENDPOINT", "unix:/d", driven, "--engine-data=unix:/e", func(c config) any { return c.dataAt.String() },
			"unix:/d", "unix:/e",
		},
		{
			"CONTAINER_MEM_REQ_BYTES", "1073741824", driven, "--memory-request=2Gi", func(c config) any { return c.memoryRequest },
			byteCount(1 << 30), byteCount(2 << 30),
		},
		{
			"MEM_BUFFER_BYTES", "1048576", driven, "--memory-buffer=2Mi", func(c config) any { return c.memoryBuffer },
			byteCount(1 << 20), byteCount(2 << 20),
		},
		{"MODELSIZE_MULTIPLIER", "1.5", driven, "--size-factor=2", func(c config) any { return c.sizeFactor }, 1.5, 2.0},
		{
			"DEFAULT_MODELSIZE", "2000000", driven, "--default-size=3M", func(c config) any { return c.defaultSize },
			byteCount(2_000_000), byteCount(3_000_000),
		},
		{"LOADING_CONCURRENCY", "3", driven, "--loads=4", func(c config) any { return c.loads }, 3, 4},
		{
			"LOADTIME_TIMEOUT", "30000", driven, "--load-timeout=1m", func(c config) any { return c.loadTimeout },
			30 * time.Second, time.Minute,
		},
		{"LIMIT_PER_MODEL_CONCURRENCY", "5", driven, "--concurrency=6", func(c config) any { return c.concurrency }, 5, 6},
		{"RUNTIME_VERSION", "v7", driven, "--runtime-version=v8", func(c config) any { return c.version }, "v7", "v8"},
	} {
		env := map[string]string{c.name: c.value, "CONTAINER_MEM_REQ_BYTES": "4294967296"}
		if c.name == "CONTAINER_MEM_REQ_BYTES" {
			env[c.name] = c.value
		}
		line := strings.Fields(c.line)
		if c.name != "MODEL_SERVER_ENDPOINT" && c.name != "RUNTIME_PORT" {
			line = append(line, "--engine=port:9")
		}
		got, err := parseFlags(line, environment(env), io.Discard)
		if err != nil && !strings.Contains(err.Error(), "--engine") || c.of(got) != c.want {
			t.Errorf("%s=%s: %v, %v, want %v", c.name, c.value, c.of(got), err, c.want)
		}
		if got, _ := parseFlags(append(line, c.flag), environment(env), io.Discard); c.of(got) != c.wins {
			t.Errorf("%s=%s with %s: %v, want %v", c.name, c.value, c.flag, c.of(got), c.wins)
		}
	}
}

// Variables of the adapters do not change how a custom runtime is served, and a wrong one is named.
func TestEnvironmentOfOtherEngines(t *testing.T) {
	c, err := parseFlags(strings.Fields("--kind modelruntime --engine unix:/s --management :8086"),
		environment(map[string]string{"RUNTIME_PORT": "7071", "LOADING_CONCURRENCY": "x"}), io.Discard)
	if err != nil || c.at.String() != "unix:/s" {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = parseFlags(strings.Fields("--kind torchserve --management :8086"),
		environment(map[string]string{"RUNTIME_PORT": "7071", "CONTAINER_MEM_REQ_BYTES": "4294967296"}), io.Discard)
	if err != nil || c.engine != "127.0.0.1:8081" { // the former is a port of gRPC
		t.Errorf("%+v, %v", c, err)
	}
	for name, words := range map[string]string{"LOADTIME_TIMEOUT": "LOADTIME_TIMEOUT", "MEM_BUFFER_BYTES": "sets --memory-buffer"} {
		_, err := parseFlags(strings.Fields(mlserver+"--memory-request 1Gi"), environment(map[string]string{name: "x"}), io.Discard)
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Kinds with an adapter in ModelMesh have its defaults.
func TestDefaultsOfKinds(t *testing.T) {
	for kind, want := range map[engine.Kind]config{
		engine.Triton:     {engine: "127.0.0.1:8001", loads: 2, sizeFactor: 1.25},
		engine.MLServer:   {engine: "127.0.0.1:8001", loads: 1, sizeFactor: 1.25},
		engine.TorchServe: {engine: "127.0.0.1:8081", loads: 1, sizeFactor: 2.75},
		engine.OVMS:       {engine: "127.0.0.1:8888", loads: 1, sizeFactor: 1.25},
		engine.TFServing:  {engine: "127.0.0.1:8500", loads: 1, sizeFactor: 1.25},
	} {
		line := "--management :8086 --memory-request 1Gi --kind " + string(kind)
		c, err := parseFlags(strings.Fields(line), noEnvironment, io.Discard)
		if err != nil || c.engine != want.engine || c.loads != want.loads || c.sizeFactor != want.sizeFactor ||
			c.loadTimeout != 90*time.Second || c.memoryBuffer != 128<<20 || c.defaultSize != 1_000_000 ||
			c.modelsDir != "/models" || !c.helper {
			t.Errorf("%s: %+v, %v", kind, c, err)
		}
	}
	c, err := parseFlags(strings.Fields(mlserver+"--memory-request 1Gi --memory-buffer 0"), noEnvironment, io.Discard)
	if err != nil || c.memoryBuffer != 0 {
		t.Errorf("a buffer of 0: %v, %v", c.memoryBuffer, err)
	}
}

// A wrong command line is refused with the flag and with what to do.
func TestWrongCommandLines(t *testing.T) {
	for line, words := range map[string]string{
		"":                                `--kind "": want modelruntime`,
		"--kind tgi":                      `--kind "tgi": want modelruntime`,
		"--kind vllm":                     "set --engine to the address",
		"--kind ovms":                     "nothing to serve: set --management",
		mlserver:                          "set --memory-request, or CONTAINER_MEM_REQ_BYTES",
		mlserver + "x":                    `unexpected argument "x"`,
		mlserver + "--memory-request 1Mi": "leaves no room for models beside --memory-buffer 128Mi",
		mlserver + "--memory-request x":   "is no number of bytes",
		mlserver + "--memory-request -1":  "out of range",
		mlserver + "--memory-request 1Gi --size-factor -1":                                  "--size-factor -1: it must be above 0",
		mlserver + "--memory-request 1Gi --loads -1":                                        "--loads -1: it must be at least 1",
		mlserver + "--memory-request 1Gi --load-timeout -1s":                                "--load-timeout -1s: it must be above 0",
		mlserver + "--memory-request 1Gi --concurrency -1":                                  "--concurrency -1: it must not be below 0",
		mlserver + "--memory-request 1Gi --engine unix:/s":                                  "are managed at a port",
		"--kind modelruntime --engine x --data :1":                                          "--engine: ",
		"--kind modelruntime --engine port:1 --engine-data x --data :1":                     "--engine-data: ",
		"--kind vllm --engine port:1 --management :1 --storage-helper=false":                "leaves nothing to do",
		"--kind modelruntime --engine port:1 --data :1 --engine-key-file f":                 "--engine-key-file needs --kind vllm or sglang",
		"--kind vllm --engine port:1 --management :1 --allow s3":                            `--allow "s3": want the beginning of a URI`,
		"--kind vllm --engine port:1 --data :1 --prestop-control x":                         `--prestop-control "x": want HOST:PORT`,
		"--kind vllm --engine port:1 --data :1 --prestop-control a:1":                       "--prestop-control needs --pod",
		"--kind vllm --engine port:1 --data :1 --prestop-control a:1 --pod a/b":             "--prestop-control needs --health-address",
		mlserver + "--memory-request 1Gi --engine-protocol rest":                            "want grpc or http",
		"--kind vllm --engine port:1 --data :1 --nonsense":                                  "unknown flag: --nonsense",
		"--kind vllm --engine port:1 --management :1 --token-file /nowhere/token":           "--token-file: ",
		"--kind vllm --engine port:1 --management :1 --engine-key-file /nowhere/token":      "--engine-key-file: ",
		"--kind vllm --engine port:1 --management :1 --cert-path /nowhere":                  "--cert-path: ",
		"--kind vllm --engine port:1 --management :1 --storage-config /nowhere":             "--storage-config: ",
		"--kind vllm --engine port:1 --management :1 --models-dir /dev/null/x":              "--models-dir: ",
		"--kind modelruntime --engine port:1 --storage-helper=false --management nonsense:": "--management nonsense:: ",
	} {
		err := Run(t.Context(), strings.Fields(line), noEnvironment, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", line, err, words)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	for line, words := range map[string][]string{
		"--help":    {"Examples:", "--kind vllm --engine 127.0.0.1:8000", "Files of models:", "--prestop-control ADDRESS"},
		"--version": {"agent "},
	} {
		var out bytes.Buffer
		err := Run(t.Context(), []string{line}, noEnvironment, &out, io.Discard)
		if !errors.Is(err, pflag.ErrHelp) {
			t.Errorf("%s: %v", line, err)
		}
		for _, w := range words {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: it lacks %q:\n%s", line, w, &out)
			}
		}
	}
}

// flagLine matches a flag in the list of flags of a help text.
var flagLine = regexp.MustCompile(`(?m)^ {2,6}(?:-\w, +)?(--[a-z][a-z0-9-]*)`)

// TestNames compares the names of flags with the golden list.
func TestNames(t *testing.T) {
	var out bytes.Buffer
	_ = Run(t.Context(), []string{"--help"}, noEnvironment, &out, io.Discard)
	var names []string
	for _, found := range flagLine.FindAllStringSubmatch(out.String(), -1) {
		names = append(names, "agent "+found[1])
	}
	surface.Check(t, "flags-agent", names)
}
