package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/headgate/headgate/control/attach/conditions"
	"github.com/headgate/headgate/control/broadcast"
	"github.com/headgate/headgate/control/election"
	"github.com/headgate/headgate/control/metrics"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/pods"
	"github.com/headgate/headgate/control/prestop"
	"github.com/headgate/headgate/control/serve"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
)

// office is what a control has for as long as it lives, whether it leads or not.
type office struct {
	config
	access engineclient.Access
	worlds *broadcast.Value[objects.World]
	// gateways is what the plans of Gateways say, where Envoys are served.
	gateways *broadcast.Value[conditions.Input]
	meter    *metrics.Meter
	server   *serve.Server
	prestop  *prestop.Server
	log      *slog.Logger
	// byName gets what of an API server is read by its name, once that can be done.
	byName chan kube.Named
	// ready is called when the control has read the objects, maybe more than once.
	ready func()
	// remember opens what controls that led before remember, and returns who tells of objects in their status. Nothing is written
	// while leads is false.
	remember func(ctx context.Context, leads func() bool) (store.Memory, teller, error)
	// keep tells what is known of Gateways, and if that is asked for makes their pods while leads is true, until ctx ends.
	keep func(ctx context.Context, leads func() bool, tell func(conditions.Input)) error
	// announce makes extprocs come to this control while leads is true, until ctx ends.
	announce func(ctx context.Context, leads func() bool)
}

// teller tells people what became of objects, in these objects' status.
type teller interface {
	SetWorld(w *objects.World)
	SetGateways(in conditions.Input)
}

// serve serves until ctx ends; terms are those in which this control leads.
func (o *office) serve(ctx context.Context, terms func(context.Context, election.Term) error) (err error) {
	o.server, err = serve.New(serve.Config{Listen: o.listen, CertPath: o.certPath, Placement: o.placement, Mesh: o.mesh}, o.log)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return o.server.Run(ctx) })
	group.Go(func() error { return o.prestop.Serve(ctx, o.hooks) })
	group.Go(func() error { return terms(ctx, o.term) })
	return group.Wait()
}

// alone is a control beside a folder of objects, which leads for as long as it lives.
func (o *office) alone(ctx context.Context) error {
	o.remember = func(context.Context, func() bool) (store.Memory, teller, error) {
		file, err := store.Open(o.state, o.log)
		if err != nil {
			return nil, nil, fmt.Errorf("--state-file: %w", err)
		}
		return file, statuswriter.Nowhere{}, nil
	}
	o.announce, o.keep = func(context.Context, func() bool) {}, o.tellOnly
	return o.serve(ctx, func(ctx context.Context, term election.Term) error { return term(ctx, nil) })
}

// inCluster is a control of several, which leads while it holds their Lease: with the certificate and the tokens that all of them
// have, if that is asked for.
func (o *office) inCluster(ctx context.Context) error {
	pod, config, err := o.inNamespace()
	if err != nil {
		return err
	}
	writer, err := kube.Client(config)
	if err != nil {
		return err
	}
	o.prestop.Leader = pod.Leader
	if o.credentials != "" {
		o.certPath = o.credentials
		o.placement.TokenFile, o.mesh.TokenFile, err = pod.Credentials(ctx, o.credentials)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("--credentials-dir: %w", err)
		}
	}
	o.remember = func(ctx context.Context, leads func() bool) (store.Memory, teller, error) {
		r, err := statuswriter.Open(ctx, writer, o.kube.Namespace, o.log, leads)
		if err != nil {
			return nil, nil, err
		}
		return r, r, nil
	}
	o.announce = func(ctx context.Context, leads func() bool) {
		if port := o.port(); port != 0 && o.podIP != "" {
			pod.Address = netip.MustParseAddr(o.podIP) // it was checked
			pod.Announce(ctx, port, leads)
		}
	}
	o.keep = o.tellOnly
	if o.envoyImage != "" {
		all := pods.Gateways{Pod: pod, EnvoyImage: o.envoyImage, ExtprocImage: o.extprocImage, Port: portOf(o.envoys)}
		o.keep = func(ctx context.Context, leads func() bool, tell func(conditions.Input)) error {
			return all.Keep(ctx, leads, o.gateways.Get, tell)
		}
	}
	election := election.New(pod.Client, pod.Namespace, objectName(o.pod).Name, o.log)
	election.Heard = o.meter.Leader
	return o.serve(ctx, election.Run)
}

// tellOnly tells what is known of Gateways.
func (o *office) tellOnly(ctx context.Context, _ func() bool, tell func(conditions.Input)) error {
	o.gateways.Follow(ctx, func(in *conditions.Input) { tell(*in) })
	return nil
}

// inNamespace is what the pods of control share in their namespace, and the API server that has it.
func (o *office) inNamespace() (pods.Pod, *rest.Config, error) {
	config, err := kube.Connect(o.kube.Config)
	if err != nil {
		return pods.Pod{}, nil, err
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return pods.Pod{}, nil, fmt.Errorf("the API server: %w", err)
	}
	return pods.Pod{Client: core, Namespace: objectName(o.pod).Namespace, Log: o.log}, config, nil
}

// port is the one that others can reach, 0 if there is none.
func (c config) port() uint16 {
	for _, address := range c.listen {
		if port := portOf(address); port != 0 {
			return port
		}
	}
	return 0
}

// portOf is the port of HOST:PORT, 0 if it is none.
func portOf(address string) uint16 {
	_, text, err := net.SplitHostPort(address)
	if err != nil || strings.HasPrefix(address, "unix:") {
		return 0
	}
	port, _ := strconv.ParseUint(text, 10, 16) // 0 if it is none
	return uint16(port)
}
