package lifecycle

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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/control/attach/controller"
	"github.com/headgate/headgate/control/broadcast"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/election"
	"github.com/headgate/headgate/control/metrics"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/pods"
	"github.com/headgate/headgate/control/serve"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
)

// ClusterConfig configures a [Cluster].
type ClusterConfig struct {
	// Kubeconfig is a kubeconfig file. If it is empty, control uses $KUBECONFIG, or the service
	// account of the pod if that is not set.
	Kubeconfig string
	// ObjectsNamespace is the only namespace whose objects control uses; empty means all.
	ObjectsNamespace string
	// Pod is the pod of this control. The Lease is in the pod's namespace.
	Pod objects.Name
	// PodIP is the address at which extprocs reach the pod. If it is empty, control does not
	// announce one.
	PodIP string
	// CredentialsDir is the folder into which control copies the certificate and the tokens of the
	// Secret. If it is empty, control copies nothing.
	CredentialsDir string
	// Listen is where control serves extprocs.
	Listen []string
	// XDSAddress is where control serves Envoys; empty: nowhere.
	XDSAddress string
	// EnvoyImage and ExtprocImage are the images of Gateways' pods. If they are empty, control
	// makes no such pods.
	EnvoyImage, ExtprocImage string
	Meter                    *metrics.Meter
	Log                      *slog.Logger
}

// Cluster is one of several controls in a cluster. It leads while it holds their Lease. Make one
// with [NewCluster].
type Cluster struct {
	ClusterConfig
	pod    pods.Pod
	status client.Client
	named  chan kube.Named
}

// NewCluster returns a Cluster. It does not call the API server.
func NewCluster(c ClusterConfig) (*Cluster, error) {
	config, err := kube.Connect(c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("the API server: %w", err)
	}
	status, err := kube.Client(config)
	if err != nil {
		return nil, err
	}
	pod := pods.Pod{Client: core, Namespace: c.Pod.Namespace, Log: c.Log}
	return &Cluster{ClusterConfig: c, pod: pod, status: status, named: make(chan kube.Named, 1)}, nil
}

// SetNamed sets how objects are read by name. It is called once, as soon as the API server can be
// read.
func (c *Cluster) SetNamed(n kube.Named) { c.named <- n }

// Credentials sets the certificate and the tokens that all controls share.
func (c *Cluster) Credentials(ctx context.Context, s *serve.Config) (err error) {
	if c.CredentialsDir == "" {
		return nil
	}
	s.CertPath = c.CredentialsDir
	if s.Placement.TokenFile, s.Mesh.TokenFile, err = c.pod.Credentials(ctx, c.CredentialsDir); err != nil {
		return fmt.Errorf("--credentials-dir: %w", err)
	}
	return nil
}

// Lead runs a term for each time that this control gets the Lease, until ctx ends.
func (c *Cluster) Lead(ctx context.Context, term election.Term) error {
	e := election.New(c.pod.Client, c.pod.Namespace, c.Pod.Name, c.Log)
	e.LeaderChanged = c.Meter.Leader
	return e.Run(ctx, term)
}

// Leader returns a function that reads the address that the leader has announced.
func (c *Cluster) Leader() func(context.Context) (netip.Addr, error) { return c.pod.Leader }

// Open opens a store that keeps its state in the status of objects, and the writer of that status.
// It may wait for the API server until ctx ends.
func (c *Cluster) Open(ctx context.Context, leads func() bool) (store.Memory, StatusWriter, error) {
	r, err := statuswriter.Open(ctx, c.status, c.ObjectsNamespace, c.Log, leads)
	if err != nil {
		return nil, nil, err
	}
	r.ReportChanges(c.Pod.Name)
	return r, r, nil
}

// KeepGateways reports the state of Gateways until ctx ends. If images are configured, it also
// makes the pods of Gateways.
func (c *Cluster) KeepGateways(ctx context.Context, leads func() bool, gateways *broadcast.Value[conditions.Input],
	report func(conditions.Input),
) error {
	if c.EnvoyImage == "" {
		return Alone{}.KeepGateways(ctx, leads, gateways, report)
	}
	all := pods.Gateways{Pod: c.pod, EnvoyImage: c.EnvoyImage, ExtprocImage: c.ExtprocImage, Port: Port(c.XDSAddress)}
	return all.Run(ctx, leads, gateways.Get, report)
}

// Announce points the Service of placement to this pod, until ctx ends.
func (c *Cluster) Announce(ctx context.Context, leads func() bool) {
	for _, address := range c.Listen {
		if port := Port(address); port != 0 && c.PodIP != "" {
			pod := c.pod
			pod.Address = netip.MustParseAddr(c.PodIP) // the flag was validated
			pod.Announce(ctx, port, leads)
			return
		}
	}
}

// ServeEnvoys serves Envoys until ctx ends. At HOST:PORT, Envoys authenticate with certificates,
// and this control shares their answers with the other controls.
func (c *Cluster) ServeEnvoys(ctx context.Context, s controller.Service) error {
	s.ByName, s.Authority, s.Pods = c.named, c.pod.Authority, c.EnvoyImage != ""
	group, ctx := errgroup.WithContext(ctx)
	if Port(s.Address) != 0 {
		peers := c.pod.Peers(c.Pod.Name)
		s.Peers = peers
		group.Go(func() error { return peers.Run(ctx) })
	}
	group.Go(func() error { return s.Run(ctx) })
	return group.Wait()
}

// Port returns the port of HOST:PORT, and 0 for any other address.
func Port(address string) uint16 {
	_, text, err := net.SplitHostPort(address)
	if err != nil || strings.HasPrefix(address, "unix:") {
		return 0
	}
	port, _ := strconv.ParseUint(text, 10, 16) // 0 if the text is no port
	return uint16(port)
}
