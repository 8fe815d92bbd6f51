package controller

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/certificates"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/pki"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
)

// Service serves the Envoys of Gateways. Every control runs one, whether it leads or not.
type Service struct {
	// Address is where Envoys connect. It is unix:PATH if Envoys need no certificate, or HOST:PORT
	// if they need one.
	Address string
	// Authority returns the authority that signs the certificates of Envoys. It is called only if
	// Address is HOST:PORT. It may wait for the API server, and fails when ctx ends.
	Authority func(context.Context) (*pki.Authority, error)
	// ByName receives the readers of Secrets and ConfigMaps of an API server once they are
	// available. It is nil if the objects are in a folder.
	ByName <-chan kube.Named
	// Worlds returns the latest World (nil before the first), and a channel that is closed when
	// there is a newer one.
	Worlds func() (*objects.World, <-chan struct{})
	// Pods, Peers and Planned are the fields of [Config] with these names.
	Pods    bool
	Peers   Peers
	Planned func(Plans)
	Meter   Meter
	Log     *slog.Logger
}

// Meter counts what Envoys are sent and reject, and measures how long planning takes.
type Meter interface {
	ads.Meter
	Replanned(took time.Duration)
}

// Run serves Envoys until ctx ends.
func (s Service) Run(ctx context.Context) error {
	template, err := envoy.Read(headgate.EnvoyYAML)
	if err != nil {
		return fmt.Errorf("envoy.yaml: %w", err)
	}
	who, secure, open := ads.FromNode, (*tls.Config)(nil), listen.Private
	if !strings.HasPrefix(s.Address, "unix:") {
		who, open = ads.Certified, listen.On
		authority, err := s.Authority(ctx)
		if err != nil {
			return fmt.Errorf("--xds-address %s: %w", s.Address, err)
		}
		if secure, err = authority.Control(time.Now()); err != nil {
			return err
		}
	}
	l, err := open("xds-address", s.Address)
	if err != nil {
		return err
	}
	answers := NewAnswers()
	envoys := ads.New(ads.Config{
		Identify: who, Answered: answers.Answered, Disconnected: answers.Disconnected, Settled: answers.Settled,
		Meter: s.Meter, Log: s.Log,
	})
	c := Config{
		Template: template, Envoys: envoys, Answers: answers, Pods: s.Pods, Peers: s.Peers, Planned: s.Planned,
		Replanned: s.Meter.Replanned, Log: s.Log,
	}
	if s.ByName != nil {
		select {
		case named := <-s.ByName:
			c.Certificates = certificates.New(named.Secrets, certificates.KeyPairs, s.Log)
			c.Authorities = certificates.New(named.ConfigMaps, certificates.Authorities, s.Log)
		case <-ctx.Done():
			return l.Close()
		}
	}
	s.Log.Info("serving the Envoys of Gateways", "address", s.Address)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return New(c).Run(ctx, s.Worlds) })
	group.Go(func() error { return envoys.Run(ctx, l, secure) })
	return group.Wait()
}
