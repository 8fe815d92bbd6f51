package objects

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
)

const (
	poolGroup   = "inference.networking.k8s.io"
	maxWeight   = 1_000_000 // Gateway API's limit on a backendRef's weight
	maxPorts    = 8         // GIE v1.6 InferencePool
	maxSelector = 64        // GIE v1.6 InferencePool

	// maxParents and the limits below keep an object cheap to validate for an API server. Where
	// Gateway API has a limit, it is the same.
	maxParents    = 32
	maxBackends   = 16
	maxModels     = 128
	maxObjectives = 16
	maxAddresses  = 512
	maxWord       = 256  // characters in a header or cookie name
	maxNameLen    = 253  // longest name of a referenced object
	maxPath       = 4096 // longest path or URI
	maxType       = 512
	maxInfo       = 65536 // longest info for a model runtime
)

// CheckRoute validates an LLMRoute.
func CheckRoute(r *v1alpha1.LLMRoute) field.ErrorList {
	errs := CheckName(r.Name)
	spec := field.NewPath("spec")

	if len(r.Spec.BackendRefs) == 0 {
		errs = append(errs, field.Required(spec.Child("backendRefs"), "name the InferencePool that serves the route"))
	}
	total := int64(0)
	for i, b := range r.Spec.BackendRefs {
		path := spec.Child("backendRefs").Index(i)
		errs = append(errs, checkBackend(path, b)...)
		if b.Weight == nil {
			total++
		} else {
			total += int64(*b.Weight)
		}
	}
	if len(r.Spec.BackendRefs) > 0 && total == 0 {
		errs = append(errs, field.Invalid(spec.Child("backendRefs"), "weight 0", "give at least one pool a weight above 0"))
	}
	errs = append(errs, checkCount(spec.Child("backendRefs"), len(r.Spec.BackendRefs), maxBackends)...)
	errs = append(errs, checkCount(spec.Child("parentRefs"), len(r.Spec.ParentRefs), maxParents)...)
	for i, p := range r.Spec.ParentRefs {
		if p.Name == "" {
			errs = append(errs, field.Required(spec.Child("parentRefs").Index(i).Child("name"), "name the Gateway"))
		}
	}

	errs = append(errs, checkCount(spec.Child("modelNames"), len(r.Spec.ModelNames), maxModels)...)
	seen := make(map[string]bool)
	for i, name := range r.Spec.ModelNames {
		path := spec.Child("modelNames").Index(i)
		errs = append(errs, checkText(path, name)...)
		if seen[name] {
			errs = append(errs, field.Duplicate(path, name))
		}
		seen[name] = true
	}
	if r.Spec.Adapter != nil {
		errs = append(errs, checkModel(spec.Child("adapter", "name"), r.Spec.Adapter.Name)...)
	}
	errs = append(errs, checkCount(spec.Child("objectives"), len(r.Spec.Objectives), maxObjectives)...)
	for i, o := range r.Spec.Objectives {
		errs = append(errs, checkObjective(spec.Child("objectives").Index(i), o)...)
	}
	errs = append(errs, checkSharing(spec, &r.Spec)...)
	if m := r.Spec.Metrics; m != nil && m.Format != v1alpha1.MetricsPrometheus {
		errs = append(errs, field.NotSupported(spec.Child("metrics", "format"), m.Format, []string{v1alpha1.MetricsPrometheus}))
	}
	return errs
}

// CheckPool validates an InferencePool.
func CheckPool(p *pool.InferencePool) field.ErrorList {
	errs := CheckName(p.Name)
	spec := field.NewPath("spec")

	labels := spec.Child("selector", "matchLabels")
	switch n := len(p.Spec.Selector.MatchLabels); {
	case n == 0:
		errs = append(errs, field.Required(labels, "name at least one label of the pods that serve"))
	case n > maxSelector:
		errs = append(errs, field.TooMany(labels, n, maxSelector))
	}

	ports := spec.Child("targetPorts")
	switch n := len(p.Spec.TargetPorts); {
	case n == 0:
		errs = append(errs, field.Required(ports, "name the port that the engines serve on, such as {number: 8000}"))
	case n > maxPorts:
		errs = append(errs, field.TooMany(ports, n, maxPorts))
	}
	seen := make(map[int32]bool)
	for i, port := range p.Spec.TargetPorts {
		path := ports.Index(i).Child("number")
		for _, msg := range validation.IsValidPortNum(int(port.Number)) {
			errs = append(errs, field.Invalid(path, port.Number, msg))
		}
		if seen[port.Number] {
			errs = append(errs, field.Duplicate(path, port.Number))
		}
		seen[port.Number] = true
	}

	if ref := p.Spec.EndpointPickerRef; ref != nil {
		errs = append(errs, checkPicker(spec.Child("endpointPickerRef"), ref)...)
	}
	return errs
}

// CheckFolderPool validates an InferencePool of a folder. An API server's newer CRD may allow
// fields that Headgate does not support; the status reports those.
func CheckFolderPool(p *pool.InferencePool) field.ErrorList {
	errs := CheckPool(p)
	if a := p.Spec.AppProtocol; a != "" && a != pool.HTTP && a != pool.H2C {
		errs = append(errs, field.NotSupported(field.NewPath("spec", "appProtocol"), a, []string{pool.HTTP, pool.H2C}))
	}
	return errs
}

// CheckList validates an EndpointList.
func CheckList(l *v1alpha1.EndpointList) field.ErrorList {
	errs := CheckName(l.Name)
	spec := field.NewPath("spec")

	addresses := spec.Child("addresses")
	if len(l.Spec.Addresses) == 0 {
		errs = append(errs, field.Required(addresses, "name at least one address, such as 10.0.0.7:8000"))
	}
	errs = append(errs, checkCount(addresses, len(l.Spec.Addresses), maxAddresses)...)
	seen := make(map[string]bool)
	for i, text := range l.Spec.Addresses {
		if _, err := ParseAddress(text); err != nil {
			errs = append(errs, field.Invalid(addresses.Index(i), text, err.Error()))
		}
		if seen[text] {
			errs = append(errs, field.Duplicate(addresses.Index(i), text))
		}
		seen[text] = true
	}
	kind, ok := engine.ParseKind(l.Spec.Engine)
	if !ok {
		errs = append(errs, field.NotSupported(spec.Child("engine"), engine.Kind(l.Spec.Engine), engine.Kinds()))
	}
	if m := l.Spec.Management; m != "" {
		path := spec.Child("management")
		errs = append(errs, checkLength(path, m, maxPath)...)
		if err := checkManagement(m); err != nil {
			errs = append(errs, field.Invalid(path, m, err.Error()))
		}
		if kind != "" && !kind.Managed() {
			errs = append(errs, field.Invalid(path, m,
				"only engines of the kinds modelruntime, torchserve, vllm and sglang have a management address"))
		}
		if (kind == engine.TorchServe || kind.Adapters()) && strings.HasPrefix(m, unixScheme) {
			errs = append(errs, field.Invalid(path, m,
				"want port:NUMBER, such as port:8081; a socket is for engines of the kind modelruntime"))
		}
		if strings.HasPrefix(m, unixScheme) && len(l.Spec.Addresses) > 1 {
			errs = append(errs, field.Invalid(path, m, "a socket belongs to one endpoint: put each address into its own EndpointList"))
		}
	}
	return append(errs, checkPorts(spec.Child("ports"), l.Spec.Ports)...)
}

// loopback is why an EndpointList of an API server may have no loopback address.
const loopback = "in a cluster, a loopback address is Headgate's own pod, not an engine's: use the engine's address"

// CheckClusterList validates an EndpointList of an API server. Its author must not reach loopback
// ports or files of Headgate's own pod.
func CheckClusterList(l *v1alpha1.EndpointList) field.ErrorList {
	errs := CheckList(l)
	spec := field.NewPath("spec")
	for i, text := range l.Spec.Addresses {
		if a, err := ParseAddress(text); err == nil && a.IP.IsLoopback() {
			errs = append(errs, field.Invalid(spec.Child("addresses").Index(i), text, loopback))
		}
	}
	if m := l.Spec.Management; strings.HasPrefix(m, unixScheme) {
		errs = append(errs, field.Invalid(spec.Child("management"), m,
			"want port:NUMBER, such as port:8085; a socket is for an EndpointList in a folder"))
	}
	return errs
}

// CheckGateway validates the parts of a Gateway that Headgate needs.
func CheckGateway(g *gatewayv1.Gateway) field.ErrorList {
	errs := CheckName(g.Name)
	spec := field.NewPath("spec")
	if g.Spec.GatewayClassName == "" {
		errs = append(errs, field.Required(spec.Child("gatewayClassName"), "name the GatewayClass, such as headgate"))
	}
	listeners := spec.Child("listeners")
	if len(g.Spec.Listeners) == 0 {
		errs = append(errs, field.Required(listeners, "add at least one listener, such as {name: http, port: 80, protocol: HTTP}"))
	}
	seen := make(map[gatewayv1.SectionName]bool)
	for i, l := range g.Spec.Listeners {
		path := listeners.Index(i).Child("name")
		switch {
		case l.Name == "":
			errs = append(errs, field.Required(path, "give the listener a name"))
		case seen[l.Name]:
			errs = append(errs, field.Duplicate(path, l.Name))
		}
		seen[l.Name] = true
	}
	return errs
}

// CheckName validates an object's name.
func CheckName(name string) field.ErrorList {
	path := field.NewPath("metadata", "name")
	if name == "" {
		return field.ErrorList{field.Required(path, "give the object a name")}
	}
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}

// checkCount refuses a list of more than limit items.
func checkCount(path *field.Path, n, limit int) field.ErrorList {
	if n > limit {
		return field.ErrorList{field.TooMany(path, n, limit)}
	}
	return nil
}

// checkLength refuses a text of more than limit characters.
func checkLength(path *field.Path, text string, limit int) field.ErrorList {
	if utf8.RuneCountInString(text) > limit {
		return field.ErrorList{field.TooLongCharacters(path, text, limit)}
	}
	return nil
}

func checkModel(path *field.Path, name string) field.ErrorList {
	if err := engine.CheckName(name); err != nil {
		return field.ErrorList{field.Invalid(path, name, fmt.Sprintf("no model can have this name: %v", err))}
	}
	return nil
}

// checkText validates a name that appears only in requests. No engine has to load it, so it may be
// a path.
func checkText(path *field.Path, name string) field.ErrorList {
	if err := engine.CheckText(name); err != nil {
		return field.ErrorList{field.Invalid(path, name, fmt.Sprintf("no model can have this name: %v", err))}
	}
	return nil
}

func checkBackend(path *field.Path, b v1alpha1.BackendReference) field.ErrorList {
	var errs field.ErrorList
	if b.Group != nil && *b.Group != poolGroup {
		errs = append(errs, field.NotSupported(path.Child("group"), *b.Group, []string{poolGroup}))
	}
	if b.Kind != nil && *b.Kind != pool.Kind {
		errs = append(errs, field.NotSupported(path.Child("kind"), *b.Kind, []string{pool.Kind}))
	}
	if b.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "name an InferencePool in the route's namespace"))
	}
	errs = append(errs, checkLength(path.Child("name"), b.Name, maxNameLen)...)
	if b.Weight != nil && (*b.Weight < 0 || *b.Weight > maxWeight) {
		errs = append(errs, field.Invalid(path.Child("weight"), *b.Weight, fmt.Sprintf("a weight is 0 to %d", maxWeight)))
	}
	return errs
}

func checkObjective(path *field.Path, o v1alpha1.Objective) field.ErrorList {
	var errs field.ErrorList
	if o.Type != v1alpha1.OutputTokenLatency && o.Type != v1alpha1.TimeToFirstToken {
		errs = append(errs, field.NotSupported(path.Child("type"), o.Type,
			[]v1alpha1.ObjectiveType{v1alpha1.OutputTokenLatency, v1alpha1.TimeToFirstToken}))
	}
	latency := path.Child("latency")
	if o.Latency.Value.Duration <= 0 {
		errs = append(errs, field.Invalid(latency.Child("value"), o.Latency.Value.Duration.String(), "a latency is above 0, such as 200ms"))
	}
	if q := o.Latency.Quantile; q != nil && (q.Numerator <= 0 || q.Denominator < q.Numerator) {
		errs = append(errs, field.Invalid(latency.Child("quantile"), fmt.Sprintf("%d/%d", q.Numerator, q.Denominator),
			"a quantile is above 0 and at most 1, such as {numerator: 99, denominator: 100}"))
	}
	return errs
}

func checkPicker(path *field.Path, ref *pool.EndpointPickerRef) field.ErrorList {
	var errs field.ErrorList
	if ref.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "name the endpoint picker's Service"))
	}
	errs = append(errs, checkLength(path.Child("name"), ref.Name, maxNameLen)...)
	if (ref.Kind == "" || ref.Kind == "Service") && ref.Port == nil {
		errs = append(errs, field.Required(path.Child("port"), "a Service needs the port that its endpoint picker serves on"))
	}
	if ref.Port != nil {
		for _, msg := range validation.IsValidPortNum(int(ref.Port.Number)) {
			errs = append(errs, field.Invalid(path.Child("port", "number"), ref.Port.Number, msg))
		}
	}
	if m := ref.FailureMode; m != "" && m != "FailOpen" && m != "FailClose" {
		errs = append(errs, field.NotSupported(path.Child("failureMode"), m, []string{"FailOpen", "FailClose"}))
	}
	return errs
}
