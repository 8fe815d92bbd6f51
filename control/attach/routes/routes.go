// Package routes is the command "control routes". It prints the plan of each Gateway. Package
// explain also uses [Flags] and [Read].
package routes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/control/attach/certificates"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/source"
)

const usage = `control routes prints the plan of each Gateway of Headgate's classes: on which ports its Envoys listen, which rule takes which
requests, and where these go. The first rule that matches takes a request. It also prints what is wrong with listeners and
routes. With --objects it checks the certificates in the folder's Secrets. With --kube it reads no Secret, and takes the
certificates for valid.

Usage:

  control routes --objects DIR
  control routes --kube

Flags:

`

// Flags returns the flags of a command that reads plans. The flags set the source of the objects.
// The command's help is printed to out.
func Flags(name, usage string, out io.Writer, s *source.Source) *pflag.FlagSet {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintln(out, usage+fs.FlagUsagesWrapped(100)) }
	fs.SortFlags = false
	fs.StringVar(&s.Dir, "objects", "", "read the objects from the YAML files in this `DIR`")
	s.Kube.Register(fs)
	return fs
}

// Read reads the objects and returns their plans.
func Read(ctx context.Context, s source.Source) (*plan.Plans, error) {
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
	fs := Flags("routes", usage, out, &from)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("routes takes no argument, but got %q", fs.Arg(0))
	}
	plans, err := Read(ctx, from)
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
