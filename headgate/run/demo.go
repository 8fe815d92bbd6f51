package run

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/internal/cli"
)

// demo has the objects of the demo: the folder objects for envoy.yaml, gateway for --gateway, and
// models for --models.
//
//go:embed objects gateway models
var demo embed.FS

// writeDemo writes a folder of the demo to another folder, which it makes.
func writeDemo(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	entries, err := demo.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := demo.ReadFile(from + "/" + e.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

const initUsage = `headgate init writes the files that headgate run uses into a new folder, for you to edit. These are Envoy's configuration
(envoy.yaml), the objects of the demo (objects), those of the Gateway API demo (gateway), and those of models in storage
(models). It never overwrites a file.

Usage:

  headgate init DIR

Examples:

  headgate init demo
  headgate run --objects demo/objects --envoy-config demo/envoy.yaml
  headgate run --gateway --objects demo/gateway

`

// Init is the command "headgate init". It prints to out.
func Init(_ context.Context, args []string, out io.Writer) error {
	flags := cli.Flags("headgate init", initUsage, out)
	if err := cli.Parse(flags, args, 1); err != nil {
		return err
	}
	to := flags.Arg(0)
	if to == "" {
		return flags.Wrong(errors.New("name the folder to write, such as headgate init demo"))
	}
	for _, name := range []string{"envoy.yaml", "objects", "gateway", "models"} {
		if _, err := os.Lstat(filepath.Join(to, name)); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, fmt.Errorf("%s is there already: name another folder, or move it away", filepath.Join(to, name)))
		}
	}
	for _, folder := range []string{"objects", "gateway", "models"} {
		if err := writeDemo(folder, filepath.Join(to, folder)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(to, "envoy.yaml"), headgate.EnvoyYAML, 0o644); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "wrote envoy.yaml, objects, gateway and models into %[1]s; edit them, and run them with\n\n  headgate run --objects %[2]s --envoy-config %[3]s\n  headgate run --gateway --objects %[4]s\n  headgate run --models --objects %[5]s\n",
		to, filepath.Join(to, "objects"), filepath.Join(to, "envoy.yaml"), filepath.Join(to, "gateway"), filepath.Join(to, "models"))
	return err
}
