package show

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
	"github.com/headgate/headgate/internal/objects"
)

const bootstrapUsage = `control bootstrap prints the configuration with which an Envoy of a Gateway starts. All else comes from control, and the endpoints
of pools from the extproc beside it: both are called by their sockets.

Usage:

  control bootstrap [flags] NAMESPACE/NAME

Example:

  control bootstrap default/headgate > .run/envoy.json
  envoy --config-path .run/envoy.json

Flags:

`

// Bootstrap is the command "bootstrap". It prints to out.
func Bootstrap(_ context.Context, args []string, out io.Writer) error {
	fs := flags("bootstrap", bootstrapUsage, out)
	control := fs.String("control", ".run/envoys.sock", "call control at this `SOCKET`, where it serves --xds-address")
	extproc := fs.String("extproc", ".run/extproc.sock", "call extproc at this `SOCKET`, where it serves --listen")
	admin := fs.String("admin", "127.0.0.1:9901", "serve Envoy's admin interface at this `ADDRESS`")
	node := fs.String("node", "", "tell this Envoy from the Gateway's others by this `ID` (default the name of the machine)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	gateway, ok := objects.ParseName(fs.Arg(0))
	if fs.NArg() != 1 || !ok {
		return errors.New("bootstrap wants a Gateway, as NAMESPACE/NAME; see control bootstrap --help")
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
