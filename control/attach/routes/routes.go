// Package routes is the command "headgate routes". It prints the plan of each Gateway, or which
// rule takes a request, and why.
package routes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/control/attach/certificates"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/source"
)

const usage = `Prints the plan of each Gateway of Headgate's classes: on which ports its Envoys listen, which rule takes which requests, and
where these go. The first rule that matches takes a request. It also prints what is wrong with listeners and routes.

With HOST and PATH it prints which rule takes such a request, and why the rules before it do not.

With --objects it checks the certificates in the folder's Secrets. A TLS listener without a valid certificate takes no
request. With --kube it reads no Secret, and takes the certificates for valid.

Usage:

  headgate routes --objects DIR [flags] [HOST PATH]
  headgate routes --kube [flags] [HOST PATH]

Examples:

  headgate routes --objects DIR
  headgate routes --objects DIR --header 'x-team: ml' chat.example.com '/v1/models?limit=3'

`

// read reads the objects and returns their plans.
func read(ctx context.Context, s source.Source) (*plan.Plans, error) {
	if err := s.Kube.Check(s.Dir); err != nil {
		return nil, err
	}
	if !s.Kube.On && s.Dir == "" {
		return nil, errors.New("set --objects to a folder of objects, or --kube for an API server")
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

// granted returns a valid certificate for each named Secret or ConfigMap, without reading it.
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
	fs := cli.Flags("headgate routes", usage, out)
	fs.Group("Objects")
	fs.StringVar(&from.Dir, "objects", "", "read the objects from the YAML files in this `DIR`")
	from.Kube.Register(fs.FlagSet)
	fs.Group("The request at HOST and PATH")
	var q question
	fs.StringVar(&q.gateway, "gateway", "", "ask only the Gateway `NAMESPACE/NAME`")
	fs.Int32Var(&q.port, "port", 0, "ask only this `PORT`")
	fs.StringVar(&q.request.Method, "method", "GET", "the request's `METHOD`")
	lines := fs.StringArrayP("header", "H", nil, "a `HEADER` of the request, written NAME: VALUE; repeatable")
	if err := cli.Parse(fs, args, 2); err != nil {
		return err
	}
	if n := fs.NArg(); n == 1 || n == 2 && !strings.HasPrefix(fs.Arg(1), "/") {
		return fs.Wrong(errors.New("a request has a host and a path, such as chat.example.com /v1/models"))
	}
	if err := q.read(fs.Arg(0), fs.Arg(1), *lines); err != nil {
		return fs.Wrong(err)
	}
	plans, err := read(ctx, from)
	if err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return q.answer(plans, out)
	}
	text := plans.Text()
	if text == "" {
		text = fmt.Sprintf("There is no Gateway of a GatewayClass whose controllerName is %s.\n", attach.Controller)
	}
	_, err = io.WriteString(out, text)
	return err
}
