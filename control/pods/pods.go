// Package pods manages what the pods of control share in their namespace: the EndpointSlice through
// which extprocs reach the leader, the Secrets by which callers and controls authenticate each
// other, and the objects of Gateways.
package pods

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// PlacementName is the name of the Service for extprocs and ModelMesh's clients, of the
// EndpointSlice that points it to the leader, and of the Secret with their credentials.
const PlacementName = "headgate-placement"

const (
	// announceInterval is how often the leader checks the EndpointSlice.
	announceInterval = 10 * time.Second
	// retryInterval is the delay before a retry.
	retryInterval = time.Second
)

// Pod is the pod of this control. It needs, in its namespace, the verbs create of endpointslices
// and secrets, and get and update of [PlacementName].
type Pod struct {
	Client    kubernetes.Interface
	Namespace string
	// Address is the pod's IP.
	Address netip.Addr
	Log     *slog.Logger
}

// Announce keeps the Service of placement pointing to a port of this pod while this control leads,
// until ctx ends.
func (p Pod) Announce(ctx context.Context, port uint16, leads func() bool) {
	for failing := false; ; {
		pause := announceInterval
		if !leads() {
			pause = retryInterval
		} else if err := p.announce(ctx, port); err != nil && ctx.Err() == nil {
			pause = retryInterval
			if !failing {
				p.Log.Warn("cannot update EndpointSlice "+PlacementName+"; retrying", "namespace", p.Namespace, "err", err)
			}
			failing = true
		} else {
			failing = false
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// announce writes the EndpointSlice if it differs from the wanted one.
func (p Pod) announce(ctx context.Context, port uint16) error {
	ctx, cancel := context.WithTimeout(ctx, announceInterval) // a lost request would never be answered
	defer cancel()
	want := p.slice(port)
	all := p.Client.DiscoveryV1().EndpointSlices(p.Namespace)
	is, err := all.Get(ctx, PlacementName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = all.Create(ctx, want, metav1.CreateOptions{})
		return err
	case err != nil:
		return err
	case slices.Equal(addresses(is), addresses(want)):
		return nil
	}
	want.ResourceVersion = is.ResourceVersion
	_, err = all.Update(ctx, want, metav1.UpdateOptions{})
	return err
}

// Leader returns the address that the leader announced last.
func (p Pod) Leader(ctx context.Context) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, announceInterval)
	defer cancel()
	is, err := p.Client.DiscoveryV1().EndpointSlices(p.Namespace).Get(ctx, PlacementName, metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, err
	}
	if at := addresses(is); len(at) > 0 {
		return at[0].Addr(), nil
	}
	return netip.Addr{}, errors.New("EndpointSlice " + PlacementName + " has no address: no control has led yet, or none has --pod-ip")
}

// slice returns the EndpointSlice that points to a port of this pod.
func (p Pod) slice(port uint16) *discoveryv1.EndpointSlice {
	family := discoveryv1.AddressTypeIPv4
	if p.Address.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: PlacementName,
			Labels: map[string]string{discoveryv1.LabelServiceName: PlacementName, discoveryv1.LabelManagedBy: "headgate-control"},
		},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{p.Address.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: new("placement"), Port: new(int32(port))}},
	}
}

// addresses returns the addresses of an EndpointSlice.
func addresses(s *discoveryv1.EndpointSlice) (all []netip.AddrPort) {
	for _, e := range s.Endpoints {
		for _, address := range e.Addresses {
			for _, port := range s.Ports {
				ip, err := netip.ParseAddr(address)
				if err != nil || port.Port == nil {
					return nil // not written by control
				}
				all = append(all, netip.AddrPortFrom(ip, uint16(*port.Port)))
			}
		}
	}
	return all
}
