// Package routes tells people what control makes of Gateways, as commands: the plan of each, and which rule takes a request.
package routes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/control/attach/certificates"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/source"
)

const routesUsage = `control routes prints what the Envoys of each Gateway of Headgate's classes are to do: on which ports they listen, which rule
takes which requests, and where these go. Rules are in order: the first that fits has a request. It says, too, what is wrong with
listeners and routes. With --objects it checks the certificates in the folder's Secrets; with --kube it looks at no Secret, and takes
each that may be named for a good one.

Usage:

  control routes --objects DIR
  control routes --kube

Flags:

`

const explainUsage = `control explain says which rule of which route takes a request, and why those before it do not. As control routes, it checks
certificates with --objects, and takes them for good ones with --kube: a listener over TLS without a good one takes no request.

Usage:

  control explain --objects DIR [flags] HOST PATH

Example:

  control explain --objects DIR --header 'x-team: ml' chat.example.com '/v1/models?limit=3'

Flags:

`

// register adds the flags that say where objects come from.
func register(fs *pflag.FlagSet, s *source.Source) {
	fs.StringVar(&s.Dir, "objects", "", "read the objects from the YAML files in this `DIR`")
	s.Kube.Register(fs)
}

// read reads objects and makes their plans.
func read(ctx context.Context, s source.Source) (*plan.Plans, error) {
	if err := s.Kube.Check(s.Dir); err != nil {
		return nil, err
	}
	if !s.Kube.On && s.Dir == "" {
		return nil, errors.New("name the folder of objects with --objects, or an API server with --kube")
	}
	set, err := s.Objects(ctx, slices.Concat(kinds.WithNetwork(), kinds.ByName()))
	if err != nil {
		return nil, err
	}
	a := attach.Of(set.Network)
	secrets, configMaps := plan.Secrets(a, set.Network), plan.ConfigMaps(a, set.Network)
	known := plan.Known{Certificates: granted(secrets), Authorities: granted(configMaps)}
	if !s.Kube.On {
		at := func(o objects.Object) string { return set.At[o] }
		known.Certificates = certificates.OfFolder(set.Network, at, secrets, nil, time.Now())
		known.Authorities = certificates.AuthoritiesOfFolder(set.Network, at, configMaps, nil, time.Now())
	}
	return plan.Of(a, set.Network, known), nil
}

// granted takes every Secret and ConfigMap that is named for what it should be.
func granted(names []objects.Name) map[objects.Name]plan.Certificate {
	all := make(map[objects.Name]plan.Certificate)
	for _, name := range names {
		all[name] = plan.Certificate{}
	}
	return all
}

// Command is the command "routes". It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	var from source.Source
	fs := flags("routes", routesUsage, out)
	register(fs, &from)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("routes takes no argument: %q is one", fs.Arg(0))
	}
	plans, err := read(ctx, from)
	if err != nil {
		return err
	}
	text := plans.Text()
	if text == "" {
		text = fmt.Sprintf("There is no Gateway of a GatewayClass whose controllerName is %s.\n", attach.Controller)
	}
	_, err = io.WriteString(out, text)
	return err
}

// Explain is the command "explain". It prints to out.
func Explain(ctx context.Context, args []string, out io.Writer) error {
	var from source.Source
	fs := flags("explain", explainUsage, out)
	register(fs, &from)
	gateway := fs.String("gateway", "", "ask the Gateway of this `NAMESPACE/NAME` alone")
	port := fs.Int32("port", 0, "ask this `PORT` alone")
	method := fs.String("method", "GET", "the request's `METHOD`")
	lines := fs.StringArrayP("header", "H", nil, "a `HEADER` of the request, written NAME: VALUE; may be repeated")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() != 2 || !strings.HasPrefix(fs.Arg(1), "/") {
		return errors.New("explain wants a host and a path, such as chat.example.com /v1/models")
	}
	request := plan.Request{Host: fs.Arg(0), Path: fs.Arg(1), Method: *method, Headers: make(map[string]string)}
	for _, line := range *lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return fmt.Errorf("--header %q: want NAME: VALUE", line)
		}
		request.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	plans, err := read(ctx, from)
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
				if _, err := io.WriteString(out, tell(p.Gateway, &p.Ports[i], request)); err != nil {
					return err
				}
			}
		}
	}
	if !asked {
		return errors.New("no Gateway of Headgate's classes serves there: control routes prints what there is")
	}
	return nil
}

// tell says which rule of a port takes a request.
func tell(gateway objects.Name, p *plan.Port, r plan.Request) string {
	var out strings.Builder
	fmt.Fprintf(&out, "Gateway %s, port %d: ", gateway, p.Number)
	t := p.Take(r)
	switch {
	case t.Host == nil:
		fmt.Fprintf(&out, "404: no listener has the host %s\n", r.Host)
		return out.String()
	case t.Rule == nil:
		fmt.Fprintf(&out, "404: listener %s has the host, and none of its rules fits\n", t.Listener)
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
		fmt.Fprintf(&out, "  not %d paths of inference, of LLMRoutes\n", inference)
	}
	return out.String()
}

func flags(name, usage string, out io.Writer) *pflag.FlagSet {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintln(out, usage+fs.FlagUsagesWrapped(100)) }
	fs.SortFlags = false
	return fs
}
