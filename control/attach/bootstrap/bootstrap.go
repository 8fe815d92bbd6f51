// Package bootstrap is the command "control bootstrap". It prints the bootstrap configuration of an
// Envoy of a Gateway.
package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/objects"
)

const usage = `control bootstrap prints the configuration with which an Envoy of a Gateway starts. Envoy gets the rest from control, and the
endpoints of pools from the extproc beside it. It calls both at their sockets.

Usage:

  control bootstrap [flags] NAMESPACE/NAME

Example:

  control bootstrap default/headgate > .run/envoy.json
  envoy --config-path .run/envoy.json

`

// Command is the command "bootstrap". It prints to out.
func Command(_ context.Context, args []string, out io.Writer) error {
	fs := cli.Flags("control bootstrap", usage, out)
	control := fs.String("control", ".run/envoys.sock", "the `SOCKET` of control's --xds-address")
	extproc := fs.String("extproc", ".run/extproc.sock", "the `SOCKET` of extproc's --listen")
	admin := fs.String("admin", "127.0.0.1:9901", "serve Envoy's admin interface at this `ADDRESS`")
	node := fs.String("node", "", "the `ID` of this Envoy among those of the Gateway (default: host name)")
	if err := cli.Parse(fs, args, 1); err != nil {
		return err
	}
	gateway, ok := objects.ParseName(fs.Arg(0))
	if fs.NArg() != 1 || !ok {
		return fs.Wrong(errors.New("bootstrap needs a Gateway as NAMESPACE/NAME"))
	}
	at, err := netip.ParseAddrPort(*admin)
	if err != nil {
		return fmt.Errorf("--admin %s: want IP:PORT", *admin)
	}
	if *node == "" {
		if *node, err = os.Hostname(); err != nil {
			return fmt.Errorf("name the Envoy with --node: %w", err)
		}
	}
	template, err := envoy.Read(headgate.EnvoyYAML)
	if err != nil {
		return fmt.Errorf("envoy.yaml: %w", err)
	}
	text, err := template.Bootstrap(envoy.Place{
		Gateway: gateway, Node: *node, Admin: at,
		Extproc: strings.TrimPrefix(*extproc, "unix:"), Control: strings.TrimPrefix(*control, "unix:"),
	})
	if err != nil {
		return err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, text, "", "  "); err != nil {
		return err
	}
	indented.WriteByte('\n')
	_, err = indented.WriteTo(out)
	return err
}
