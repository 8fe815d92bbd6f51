package command

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/internal/engine"
)

// variable is an environment variable that sets a flag, unless the command line sets it.
type variable struct {
	name, flag string
	// convert converts the value of the variable to that of the flag; nil passes it.
	convert func(string) (string, error)
	// driven: the variable is one of a built-in adapter, and counts only for kinds with one.
	driven bool
}

// variables are the environment variables of ModelMesh's storage helper and of its built-in
// adapters (kserve/modelmesh-runtime-adapter), which set flags.
var variables = []variable{
	{name: "ROOT_MODEL_DIR", flag: "models-dir"},
	{name: "STORAGE_CONFIG_DIR", flag: "storage-config"},
	{name: "PVC_MOUNTS_DIR", flag: "pvc-dir"},
	{name: "PORT", flag: "management", convert: everyAddress},
	{name: "ADAPTER_PORT", flag: "management", convert: everyAddress, driven: true},
	{name: "MODEL_SERVER_ENDPOINT", flag: "engine"},
	{name: "RUNTIME_PORT", flag: "engine", convert: localPort, driven: true},
	{name: "RUNTIME_DATA_ENDPOINT", flag: "engine-data"},
	{name: "CONTAINER_MEM_REQ_BYTES", flag: "memory-request", driven: true},
	{name: "MEM_BUFFER_BYTES", flag: "memory-buffer", driven: true},
	{name: "MODELSIZE_MULTIPLIER", flag: "size-factor", driven: true},
	{name: "DEFAULT_MODELSIZE", flag: "default-size", driven: true},
	{name: "LOADING_CONCURRENCY", flag: "loads", driven: true},
	{name: "LOADTIME_TIMEOUT", flag: "load-timeout", convert: milliseconds, driven: true},
	{name: "LIMIT_PER_MODEL_CONCURRENCY", flag: "concurrency", driven: true},
	{name: "RUNTIME_VERSION", flag: "runtime-version", driven: true},
}

// forKind returns the environment without the variables that mean something else for a kind:
// RUNTIME_PORT is TorchServe's gRPC port for management, and the agent manages it over HTTP, at the
// port that package layout configures.
func forKind(kind engine.Kind, getenv func(string) string) func(string) string {
	if kind != engine.TorchServe {
		return getenv
	}
	return func(name string) string {
		if name == "RUNTIME_PORT" {
			return ""
		}
		return getenv(name)
	}
}

// everyAddress returns the port on all addresses, so that control can reach it.
func everyAddress(port string) (string, error) { return ":" + port, nil }

func localPort(port string) (string, error) { return "127.0.0.1:" + port, nil }

func milliseconds(text string) (string, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	return (time.Duration(n) * time.Millisecond).String(), err
}

// apply sets the flags that the environment sets and the command line does not. A variable of the
// storage helper counts before one of an adapter.
func apply(fs *pflag.FlagSet, getenv func(string) string, driven bool) error {
	for _, v := range variables {
		value := getenv(v.name)
		if value == "" || fs.Changed(v.flag) || v.driven && !driven {
			continue
		}
		if v.convert != nil {
			converted, err := v.convert(value)
			if err != nil {
				return fmt.Errorf("the environment variable %s is %q: want a number", v.name, value)
			}
			value = converted
		}
		if err := fs.Set(v.flag, value); err != nil {
			return fmt.Errorf("the environment variable %s, which sets --%s: %w", v.name, v.flag, err)
		}
	}
	return nil
}
