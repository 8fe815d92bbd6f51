// Package explain is the command "control explain". It prints which rule of which route matches a
// request, and why.
package explain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/control/attach/routes"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/source"
)

const usage = `control explain prints which rule of which route takes a request, and why the rules before it do not. Like control routes, it
checks certificates with --objects, and takes them for valid with --kube. A TLS listener without a valid certificate takes
no request.

Usage:

  control explain --objects DIR [flags] HOST PATH

Example:

  control explain --objects DIR --header 'x-team: ml' chat.example.com '/v1/models?limit=3'

Flags:

`

// Command is the command "explain". It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	var from source.Source
	fs := routes.Flags("explain", usage, out, &from)
	gateway := fs.String("gateway", "", "ask only the Gateway `NAMESPACE/NAME`")
	port := fs.Int32("port", 0, "ask only this `PORT`")
	method := fs.String("method", "GET", "the request's `METHOD`")
	lines := fs.StringArrayP("header", "H", nil, "a `HEADER` of the request, written NAME: VALUE; repeatable")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() != 2 || !strings.HasPrefix(fs.Arg(1), "/") {
		return errors.New("explain needs a host and a path, such as chat.example.com /v1/models")
	}
	request := plan.Request{Host: fs.Arg(0), Path: fs.Arg(1), Method: *method, Headers: make(map[string]string)}
	for _, line := range *lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return fmt.Errorf("--header %q: want NAME: VALUE", line)
		}
		request.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	plans, err := routes.Read(ctx, from)
	if err != nil {
		return err
	}
	asked := false
	for _, p := range plans.Gateways {
		if *gateway != "" && *gateway != p.Gateway.String() {
			continue
		}
		for i := range p.Ports {
			if *port == 0 || *port == p.Ports[i].Number {
				asked = true
				if _, err := io.WriteString(out, text(p.Gateway, &p.Ports[i], request)); err != nil {
					return err
				}
			}
		}
	}
	if !asked {
		return errors.New("no Gateway of Headgate's classes serves this; control routes prints all")
	}
	return nil
}

// text explains which rule of a port matches a request.
func text(gateway objects.Name, p *plan.Port, r plan.Request) string {
	var out strings.Builder
	fmt.Fprintf(&out, "Gateway %s, port %d: ", gateway, p.Number)
	t := p.Take(r)
	switch {
	case t.Host == nil:
		fmt.Fprintf(&out, "404: no listener has the host %s\n", r.Host)
		return out.String()
	case t.Rule == nil:
		fmt.Fprintf(&out, "404: listener %s has the host, and no rule of it matches\n", t.Listener)
	default:
		fmt.Fprintf(&out, "listener %s, %s\n", t.Listener, t.Rule)
	}
	inference := 0
	for _, passed := range t.Passed {
		if passed.Forward != nil && passed.Forward.Models {
			inference++
			continue
		}
		fmt.Fprintf(&out, "  not %s: %s\n", passed.Rule, passed.Why)
	}
	if inference > 0 {
		fmt.Fprintf(&out, "  not %d inference paths of LLMRoutes\n", inference)
	}
	return out.String()
}
