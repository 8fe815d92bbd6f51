// Package gateway builds the objects that run the Envoys of a Gateway: a Deployment, a Service, a
// disruption budget and a network policy. It has no side effects. It starts from the static data
// plane, manifests/static/gateway.yaml, and adds what a Gateway and its settings request.
package gateway

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// Labels of all objects of a Gateway. The label Of selects the Gateway's pods; its value is the
// name of the objects.
const (
	Of             = "headgate.dev/gateway"
	ofNamespace    = "headgate.dev/gateway-namespace"
	ofName         = "gateway.networking.k8s.io/gateway-name" // label of Gateway API (GEP-1762)
	component      = "app.kubernetes.io/component"
	managedBy      = "app.kubernetes.io/managed-by"
	manager        = "headgate-control"
	envoyComponent = "envoy"
)

// Selector selects all objects of Gateways.
const Selector = managedBy + "=" + manager + "," + Of

// Secret is the name of the Secret with the certificates of all Gateways. The keys of a Gateway are
// the name of its objects with suffixes. The Secret also contains the authority's certificate, and
// the SDS file for Envoy.
const (
	Secret            = "headgate-identities"
	CertificateSuffix = ".crt"
	KeySuffix         = ".key"
)

const (
	// Folder is where a Gateway's pods mount its certificate, as [envoy.Identity] expects.
	Folder = "/etc/headgate/gateway"
	// Extproc is the socket of the extproc beside Envoy.
	Extproc = "/headgate/.run/extproc.sock"
	// Probe and Admin are ports of Envoy, among [attach.Reserved].
	Probe = 9902
	Admin = 9901
	// metrics is the port of extproc's metrics.
	metrics = 9090
)

// DefaultReplicas is the initial number of Envoys of a Gateway.
const DefaultReplicas = 2

// Template is the static data plane. It is immutable. Make one with [Read].
type Template struct {
	deployment appsv1.Deployment
	budget     policyv1.PodDisruptionBudget
}

// Read parses the manifest of the static data plane.
func Read(text []byte) (*Template, error) {
	t := new(Template)
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var is metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &is); err != nil {
			return nil, err
		}
		var err error
		switch is.Kind {
		case "Deployment":
			err = yaml.UnmarshalStrict(doc, &t.deployment)
		case "PodDisruptionBudget":
			err = yaml.UnmarshalStrict(doc, &t.budget)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", is.Kind, err)
		}
	}
	if spec := &t.deployment.Spec.Template.Spec; envoyOf(spec) == nil || extprocOf(spec) == nil || t.budget.Kind == "" {
		return nil, errors.New("want a Deployment with the containers extproc and envoy, and a PodDisruptionBudget")
	}
	return t, nil
}

// Options are the inputs that neither the static data plane nor a Gateway contains.
type Options struct {
	// Namespace is the namespace of control and of all objects.
	Namespace string
	// EnvoyImage and ExtprocImage replace the images of the static data plane; empty keeps them.
	EnvoyImage, ExtprocImage string
	// Bootstrap is the configuration with which each Envoy starts.
	Bootstrap []byte
}

// Objects are the objects that run the Envoys of a Gateway. All have the name [Name].
type Objects struct {
	Deployment *appsv1.Deployment
	// Service is nil if the Gateway has no port to serve, since API servers reject a Service
	// without ports. An existing Service then stays, so that an error in listeners does not lose
	// its address. It is unreachable, since neither the network policy nor Envoy opens its ports.
	Service *corev1.Service
	Budget  *policyv1.PodDisruptionBudget
	Policy  *networkingv1.NetworkPolicy
}

// Name returns the name of a Gateway's objects, unique and at most 63 bytes.
func Name(of objects.Name) string {
	sum := sha256.Sum256([]byte(of.String()))
	text := strings.ReplaceAll(of.Namespace+"-"+of.Name, ".", "-")
	const prefix, most = "gateway-", 63 - len("gateway-") - 1 - 16
	return prefix + strings.Trim(text[:min(len(text), most)], "-") + "-" + hex.EncodeToString(sum[:8])
}

// Of returns the objects of a Gateway.
func (t *Template) Of(g *attach.Gateway, o Options) Objects {
	ports := servicePorts(g)
	is := Objects{Deployment: t.deploymentOf(g, o), Budget: t.budget.DeepCopy(), Policy: policyOf(ports)}
	is.Budget.ObjectMeta = metav1.ObjectMeta{}
	is.Budget.Spec = policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: selector(g)}
	is.Policy.Spec.PodSelector = *selector(g)
	all := []metav1.Object{is.Deployment, is.Budget, is.Policy}
	if len(ports) > 0 {
		is.Service = serviceOf(g, ports)
		all = append(all, is.Service)
	}
	for _, m := range all {
		m.SetNamespace(o.Namespace)
		m.SetName(Name(g.Name))
		m.SetLabels(joined(asked(g), labels(g)))
		m.SetAnnotations(annotations(g))
	}
	return is
}

func (t *Template) deploymentOf(g *attach.Gateway, o Options) *appsv1.Deployment {
	d := t.deployment.DeepCopy()
	d.ObjectMeta = metav1.ObjectMeta{}
	d.Spec.Replicas = g.Settings.Replicas
	d.Spec.Selector = selector(g)
	pod := &d.Spec.Template
	pod.Labels = labels(g)
	for i := range pod.Spec.TopologySpreadConstraints {
		pod.Spec.TopologySpreadConstraints[i].LabelSelector = selector(g)
	}
	// Envoy listens at the listeners' own ports, also those below 1024.
	pod.Spec.SecurityContext.Sysctls = append(pod.Spec.SecurityContext.Sysctls,
		corev1.Sysctl{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"})

	e := envoyOf(&pod.Spec)
	if i := slices.Index(e.Args, "--config-path"); i >= 0 {
		// Kubernetes unescapes $$ to $.
		e.Args[i], e.Args[i+1] = "--config-yaml", strings.ReplaceAll(string(o.Bootstrap), "$", "$$")
	}
	e.Ports = nil
	// Envoy does not answer before control has configured it, which may take a long time if no
	// control runs.
	e.StartupProbe = probe(corev1.Probe{PeriodSeconds: 1, FailureThreshold: 3600})
	e.ReadinessProbe = probe(corev1.Probe{PeriodSeconds: 2})
	e.LivenessProbe = probe(corev1.Probe{PeriodSeconds: 10, FailureThreshold: 6})
	mount(e.VolumeMounts, "/etc/envoy").MountPath = Folder
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == "config" {
			v.VolumeSource = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: Secret, DefaultMode: ptr.To[int32](0o440), Items: []corev1.KeyToPath{
					{Key: envoy.AuthorityFile, Path: envoy.AuthorityFile},
					{Key: envoy.SecretFile, Path: envoy.SecretFile},
					{Key: Name(g.Name) + CertificateSuffix, Path: envoy.CertificateFile},
					{Key: Name(g.Name) + KeySuffix, Path: envoy.KeyFile},
				},
			}}
		}
	}
	x := extprocOf(&pod.Spec)
	for i, arg := range x.Args {
		if rest, is := strings.CutPrefix(arg, "--control="); is {
			service, port, _ := strings.Cut(rest, ":")
			name, _, _ := strings.Cut(service, ".")
			x.Args[i] = "--control=" + name + "." + o.Namespace + ".svc:" + port
		}
	}
	if copies := g.Settings.Payloads; copies != nil {
		for _, url := range copies.Processors {
			x.Args = append(x.Args, "--payload-processor="+strings.ReplaceAll(url, "$", "$$"))
		}
	}
	setImages(&pod.Spec, o)
	if r := g.Settings.Resources; r != nil {
		if r.Envoy != nil {
			e.Resources = *r.Envoy.DeepCopy()
		}
		if r.Extproc != nil {
			x.Resources = *r.Extproc.DeepCopy()
		}
	}
	return d
}

// envoyOf and extprocOf return containers of a pod, nil if they are missing.
func envoyOf(s *corev1.PodSpec) *corev1.Container { return container(s.Containers, "envoy") }

func extprocOf(s *corev1.PodSpec) *corev1.Container { return container(s.InitContainers, "extproc") }

func container(all []corev1.Container, name string) *corev1.Container {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// mount returns the volume mount at a path; nil if there is none.
func mount(all []corev1.VolumeMount, path string) *corev1.VolumeMount {
	for i := range all {
		if all[i].MountPath == path {
			return &all[i]
		}
	}
	return new(corev1.VolumeMount)
}

func setImages(s *corev1.PodSpec, o Options) {
	for i := range s.InitContainers {
		s.InitContainers[i].Image = cmp.Or(o.ExtprocImage, s.InitContainers[i].Image)
	}
	e := envoyOf(s)
	e.Image = cmp.Or(o.EnvoyImage, e.Image)
}

func probe(p corev1.Probe) *corev1.Probe {
	p.HTTPGet = &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(Probe)}
	return &p
}

// selector selects the pods of a Gateway.
func selector(g *attach.Gateway) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{Of: Name(g.Name)}}
}

// labels returns the labels of a Gateway's objects and pods.
func labels(g *attach.Gateway) map[string]string {
	all := map[string]string{
		"app.kubernetes.io/name": "headgate", component: envoyComponent, managedBy: manager,
		Of: Name(g.Name), ofNamespace: g.Name.Namespace,
	}
	if len(g.Name.Name) <= 63 { // the limit for labels
		all[ofName] = g.Name.Name
	}
	return all
}

// asked returns the labels that a Gateway requests. Pods get neither these labels nor the Gateway's
// annotations: the owner of a Gateway must not decide what webhooks inject into pods in Headgate's
// namespace, nor which selectors match these pods.
func asked(g *attach.Gateway) map[string]string {
	if i := g.Spec.Infrastructure; i != nil {
		return plain(i.Labels)
	}
	return nil
}

// annotations returns the annotations that a Gateway requests.
func annotations(g *attach.Gateway) map[string]string {
	if i := g.Spec.Infrastructure; i != nil {
		return plain(i.Annotations)
	}
	return nil
}

func plain[K, V ~string](words map[K]V) map[string]string {
	all := make(map[string]string, len(words))
	for key, value := range words {
		all[string(key)] = string(value)
	}
	return all
}

// joined merges maps. If several maps have a key, the last one wins.
func joined(all ...map[string]string) map[string]string {
	is := make(map[string]string)
	for _, m := range all {
		maps.Copy(is, m)
	}
	return is
}

// servicePorts returns the ports of accepted listeners, sorted.
func servicePorts(g *attach.Gateway) []int32 {
	var all []int32
	for _, l := range g.Listeners {
		if l.Refused == (attach.Verdict{}) {
			all = append(all, l.Port)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func serviceOf(g *attach.Gateway, ports []int32) *corev1.Service {
	s := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		Spec:     corev1.ServiceSpec{Type: serviceType(g), Selector: selector(g).MatchLabels},
	}
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: fmt.Sprintf("port-%d", p), Port: p, TargetPort: intstr.FromInt32(p),
			Protocol: corev1.ProtocolTCP,
		})
	}
	switch asked := g.Asked(); {
	case asked == "":
	case s.Spec.Type == corev1.ServiceTypeLoadBalancer:
		s.Spec.LoadBalancerIP = asked
	default:
		s.Spec.ClusterIP = asked
	}
	return s
}

func serviceType(g *attach.Gateway) corev1.ServiceType {
	if s := g.Settings.Service; s != nil && s.Type != nil {
		return corev1.ServiceType(*s.Type)
	}
	return corev1.ServiceTypeLoadBalancer
}

// policyOf returns a network policy that lets everybody reach some ports and extproc's metrics.
func policyOf(ports []int32) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     make([]networkingv1.NetworkPolicyIngressRule, 1),
		},
	}
	for _, port := range append(slices.Clone(ports), metrics) {
		p.Spec.Ingress[0].Ports = append(p.Spec.Ingress[0].Ports, networkingv1.NetworkPolicyPort{Port: new(intstr.FromInt32(port))})
	}
	return p
}

// Addresses returns the addresses of a Service, at most 16, as in the status of a Gateway: those of
// its load balancer, or its ClusterIPs if it has another type.
func Addresses(s *corev1.Service) []gatewayv1.GatewayStatusAddress {
	var all []gatewayv1.GatewayStatusAddress
	add := func(of gatewayv1.AddressType, value string) {
		if value != "" && value != corev1.ClusterIPNone && len(all) < 16 {
			all = append(all, gatewayv1.GatewayStatusAddress{Type: &of, Value: value})
		}
	}
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		for _, ip := range s.Spec.ClusterIPs {
			add(gatewayv1.IPAddressType, ip)
		}
		return all
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		add(gatewayv1.IPAddressType, i.IP)
		add(gatewayv1.HostnameAddressType, i.Hostname)
	}
	return all
}
