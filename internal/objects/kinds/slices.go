package kinds

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/headgate/headgate/internal/objects"
)

// sliceOf converts an EndpointSlice and returns what is invalid in it. The meaning of nil, and that
// only an endpoint's first address counts, are from the API documentation of discovery/v1. A port
// without a number is ignored.
func sliceOf(s *discoveryv1.EndpointSlice) (objects.Slice, field.ErrorList) {
	faults := objects.CheckName(s.Name)
	kept := objects.Slice{Name: objects.Name{Namespace: s.Namespace, Name: s.Name}, Type: string(s.AddressType)}
	if service := s.Labels[discoveryv1.LabelServiceName]; service != "" {
		kept.Service = objects.Name{Namespace: s.Namespace, Name: service}
	}
	if kept.Type != objects.IPv4 && kept.Type != objects.IPv6 && kept.Type != objects.FQDN {
		faults = append(faults, field.NotSupported(field.NewPath("addressType"), kept.Type,
			[]string{objects.IPv4, objects.IPv6, objects.FQDN}))
		return kept, faults
	}
	for i, e := range s.Endpoints {
		address, fault := addressOf(&e, kept.Type, field.NewPath("endpoints").Index(i).Child("addresses"))
		if fault != nil {
			faults = append(faults, fault)
			continue
		}
		kept.Endpoints = append(kept.Endpoints, objects.SliceEndpoint{
			Address: address,
			Ready:   ptr.Deref(e.Conditions.Ready, true), Serving: ptr.Deref(e.Conditions.Serving, true),
			Terminating: ptr.Deref(e.Conditions.Terminating, false),
		})
	}
	for i, p := range s.Ports {
		if p.Port == nil {
			continue
		}
		for _, words := range validation.IsValidPortNum(int(*p.Port)) {
			faults = append(faults, field.Invalid(field.NewPath("ports").Index(i).Child("port"), *p.Port, words))
		}
		kept.Ports = append(kept.Ports, objects.SlicePort{
			Name: ptr.Deref(p.Name, ""), Number: *p.Port,
			Protocol: string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)),
		})
	}
	return kept, faults
}

// addressOf returns the address of an endpoint in a slice of a type; the zero Addr for a DNS name.
func addressOf(e *discoveryv1.Endpoint, of string, at *field.Path) (netip.Addr, *field.Error) {
	if len(e.Addresses) == 0 {
		return netip.Addr{}, field.Required(at, "give the endpoint an address")
	}
	if of == objects.FQDN {
		return netip.Addr{}, nil
	}
	address, err := netip.ParseAddr(e.Addresses[0])
	if err != nil || address.Is4() != (of == objects.IPv4) || address.Zone() != "" {
		return netip.Addr{}, field.Invalid(at.Index(0), e.Addresses[0], "the addresses of this EndpointSlice are of type "+of)
	}
	return address, nil
}

// trimSlice removes what [sliceOf] does not read.
func trimSlice(s *discoveryv1.EndpointSlice) {
	meta := metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, ResourceVersion: s.ResourceVersion}
	if service, ok := s.Labels[discoveryv1.LabelServiceName]; ok {
		meta.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	}
	*s = discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: s.AddressType, Endpoints: s.Endpoints, Ports: s.Ports}
	for i, e := range s.Endpoints {
		s.Endpoints[i] = discoveryv1.Endpoint{Addresses: e.Addresses[:min(1, len(e.Addresses))], Conditions: e.Conditions}
	}
	for i, p := range s.Ports {
		s.Ports[i] = discoveryv1.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port}
	}
}
