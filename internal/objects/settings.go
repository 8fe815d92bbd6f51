package objects

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/profile"
)

// Policies are the values of a PoolSettings' spec.policy. Package pick implements them.
var Policies = []string{"latency", "proposal", "leastRequest", "roundRobin", "random"}

// MaxAttempts is the maximum number of further endpoints in a response to Envoy.
const MaxAttempts = 7

// CheckSettings validates a PoolSettings.
func CheckSettings(s *v1alpha1.PoolSettings) field.ErrorList {
	errs := CheckName(s.Name)
	spec := field.NewPath("spec")
	if s.Spec.PoolRef.Name == "" {
		errs = append(errs, field.Required(spec.Child("poolRef", "name"), "name the InferencePool, in the same namespace"))
	}
	errs = append(errs, checkLength(spec.Child("poolRef", "name"), s.Spec.PoolRef.Name, maxNameLen)...)
	if p := s.Spec.Policy; p != nil && !slices.Contains(Policies, *p) {
		errs = append(errs, field.NotSupported(spec.Child("policy"), *p, Policies))
	}
	if n := s.Spec.AdapterThreshold; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(spec.Child("adapterThreshold"), *n, "it must be at least 1"))
	}
	if r := s.Spec.Retry; r != nil && r.Attempts != nil && (*r.Attempts < 0 || *r.Attempts > MaxAttempts) {
		errs = append(errs, field.Invalid(spec.Child("retry", "attempts"), *r.Attempts, fmt.Sprintf("attempts are 0 to %d", MaxAttempts)))
	}
	if a := s.Spec.SessionAffinity; a != nil {
		errs = append(errs, checkAffinity(spec.Child("sessionAffinity"), a)...)
	}
	if name := s.Spec.DefaultModel; name != "" {
		errs = append(errs, checkText(spec.Child("defaultModel"), name)...)
	}
	if t := s.Spec.Timeouts; t != nil {
		errs = append(errs, checkTimeouts(spec.Child("timeouts"), t)...)
	}
	errs = append(errs, checkFlow(spec.Child("flow"), s.Spec.Flow)...)
	if p := s.Spec.Placement; p != nil {
		errs = append(errs, checkPlacement(spec.Child("placement"), p)...)
	}
	if t := s.Spec.EngineToken; t != nil {
		errs = append(errs, checkSecret(spec.Child("engineToken", "secretRef"), t.SecretRef)...)
	}
	if a := s.Spec.Authorization; a != "" && !slices.Contains(Authorizations, a) {
		errs = append(errs, field.NotSupported(spec.Child("authorization"), a, Authorizations))
	}
	if t := s.Spec.EngineTLS; t != nil {
		errs = append(errs, checkTLS(spec.Child("engineTLS"), t)...)
	}
	if p := s.Spec.Profile; p != nil {
		errs = append(errs, checkProfile(spec.Child("profile"), p)...)
	}
	errs = append(errs, checkRPCs(spec.Child("rpcConfigs"), s.Spec.RPCConfigs)...)
	return append(errs, checkPorts(spec.Child("ports"), s.Spec.Ports)...)
}

// Authorizations are the values of a PoolSettings' spec.authorization.
var Authorizations = []string{"Client", v1alpha1.AuthorizationOfEngine}

// CheckServerSettings validates a PoolSettings of an API server.
func CheckServerSettings(s *v1alpha1.PoolSettings) field.ErrorList {
	errs := CheckSettings(s)
	if s.Spec.Authorization == v1alpha1.AuthorizationOfEngine && s.Spec.EngineToken == nil {
		errs = append(errs, field.Required(field.NewPath("spec", "engineToken"), "name the engines' token in engineToken"))
	}
	if p := s.Spec.Profile; p != nil {
		errs = append(errs, checkServerProfile(field.NewPath("spec", "profile"), p)...)
	}
	return errs
}

// checkTLS refuses TLS settings that can verify no engine.
func checkTLS(path *field.Path, t *v1alpha1.EngineTLS) field.ErrorList {
	var errs field.ErrorList
	switch name := path.Child("hostname"); {
	case t.Hostname == "" && !t.InsecureSkipVerify:
		errs = append(errs, field.Required(name, "set the DNS name in the engines' certificates"))
	case t.Hostname != "" && len(validation.IsDNS1123Subdomain(t.Hostname)) > 0:
		errs = append(errs, field.Invalid(name, t.Hostname, "want a DNS name, such as engines.llm.svc"))
	}
	switch cas := path.Child("caCertificates"); {
	case t.CACertificates == "":
	case t.InsecureSkipVerify:
		errs = append(errs, field.Invalid(cas, "", "insecureSkipVerify ignores them: set only one of the two"))
	default:
		errs = append(errs, checkLength(cas, t.CACertificates, maxCertificates)...)
		if !certificates(t.CACertificates) {
			errs = append(errs, field.Invalid(cas, "", "want certificates in PEM"))
		}
	}
	return errs
}

// maxCertificates limits the bytes of certificates in a PoolSettings.
const maxCertificates = 65536

// certificates reports whether text is one or more PEM certificates.
func certificates(text string) bool {
	rest, some := []byte(text), false
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return some && len(bytes.TrimSpace(rest)) == 0
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil || block.Type != "CERTIFICATE" {
			return false
		}
		some = true
	}
}

// CheckFolderSettings validates a PoolSettings of a folder.
func CheckFolderSettings(s *v1alpha1.PoolSettings) field.ErrorList {
	errs := CheckSettings(s)
	if s.Spec.EngineToken != nil {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "engineToken"),
			"engine tokens cannot come from a folder: remove it, and set --engine-token-file"))
	}
	if s.Spec.Profile != nil {
		errs = append(errs, checkFolderProfile(field.NewPath("spec", "profile"), &s.Spec)...)
	}
	return errs
}

// ServiceTypes are the values of a GatewaySettings' spec.service.type.
var ServiceTypes = []string{"LoadBalancer", "ClusterIP", "NodePort"}

// CheckGatewaySettings validates a GatewaySettings.
func CheckGatewaySettings(s *v1alpha1.GatewaySettings) field.ErrorList {
	errs := CheckName(s.Name)
	spec := field.NewPath("spec")
	if n := s.Spec.Replicas; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(spec.Child("replicas"), *n, "it must be at least 1"))
	}
	if of := s.Spec.Service; of != nil && of.Type != nil && !slices.Contains(ServiceTypes, *of.Type) {
		errs = append(errs, field.NotSupported(spec.Child("service", "type"), *of.Type, ServiceTypes))
	}
	if t := s.Spec.Timeouts; t != nil {
		errs = append(errs, checkPositive(spec.Child("timeouts", "idle"), t.Idle)...)
	}
	if copies := s.Spec.Payloads; copies != nil {
		errs = append(errs, checkProcessors(spec.Child("payloads", "processors"), copies.Processors)...)
	}
	return errs
}

// maxSinks limits the sinks of a GatewaySettings, and maxSink the characters of each.
const maxSinks, maxSink = 16, 2048

// sinks matches URLs of payload sinks. extproc parses the rest.
var sinks = regexp.MustCompile(`^(https?|logger)://[^\s]+$`)

func checkProcessors(path *field.Path, all []string) field.ErrorList {
	errs := checkCount(path, len(all), maxSinks)
	for i, url := range all {
		errs = append(errs, checkLength(path.Index(i), url, maxSink)...)
		if !sinks.MatchString(url) {
			errs = append(errs, field.Invalid(path.Index(i), url,
				"write the URL of a sink, such as https://sink.example/payloads, or logger://*"))
		}
	}
	return errs
}

// checkSecret refuses invalid names of Secrets and keys.
func checkSecret(path *field.Path, ref v1alpha1.SecretKeyReference) field.ErrorList {
	var errs field.ErrorList
	switch name := path.Child("name"); {
	case ref.Name == "":
		errs = append(errs, field.Required(name, "name the Secret, in the same namespace"))
	case len(validation.IsDNS1123Subdomain(ref.Name)) > 0:
		errs = append(errs, field.Invalid(name, ref.Name, "no Secret can have this name: write one such as engine-token"))
	}
	if ref.Key != "" && len(validation.IsConfigMapKey(ref.Key)) > 0 { // Secrets have the same rule
		errs = append(errs, field.Invalid(path.Child("key"), ref.Key, "no Secret can have this key: write one such as token"))
	}
	return errs
}

// Secret is a key of a Secret that contains the token of a pool's engines, as named by a
// PoolSettings of its namespace.
type Secret struct {
	Name Name
	Key  string
	// Settings is the PoolSettings that names it.
	Settings Name
}

// DefaultKey is the key used when a PoolSettings names none.
const DefaultKey = "token"

// Ref returns the reference to the token, "namespace/name/key".
func (s Secret) Ref() string { return s.Name.String() + "/" + s.Key }

// secret returns the Secret that a pool's settings name, and whether they name one.
func (p *Pool) secret() (Secret, bool) {
	if p.Settings == nil || p.Settings.EngineToken == nil {
		return Secret{}, false
	}
	ref := p.Settings.EngineToken.SecretRef
	return Secret{Name{p.Name.Namespace, ref.Name}, cmp.Or(ref.Key, DefaultKey), p.SettingsName}, true
}

// TokenRef returns the reference to the engines' token ([Secret.Ref]), empty if the pool's settings
// name none.
func (p *Pool) TokenRef() string {
	s, named := p.secret()
	if !named {
		return ""
	}
	return s.Ref()
}

// ReplacesAuthorization reports whether requests carry the engines' token instead of the client's.
func (p *Pool) ReplacesAuthorization() bool {
	return p != nil && p.Settings != nil && p.Settings.Authorization == v1alpha1.AuthorizationOfEngine
}

// Secrets returns the Secrets that pools' settings name, sorted and without duplicates, each with
// the first settings that name it.
func (w *World) Secrets() []Secret {
	var all []Secret
	for _, p := range w.Pools {
		if s, named := p.secret(); named {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b Secret) int {
		return cmp.Or(strings.Compare(a.Ref(), b.Ref()), a.Settings.Compare(b.Settings))
	})
	return slices.CompactFunc(all, func(a, b Secret) bool { return a.Ref() == b.Ref() })
}

func checkPlacement(path *field.Path, p *v1alpha1.Placement) field.ErrorList {
	var errs field.ErrorList
	if n := p.MaxAdapters; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(path.Child("maxAdapters"), *n, "it must be at least 1"))
	}
	if n := p.HostAdapters; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(path.Child("hostAdapters"), *n, "it must be at least 1"))
	}
	for _, c := range []struct {
		name    string
		value   *resource.Quantity
		example string
	}{{"capacity", p.Capacity, "4Gi"}, {"defaultSize", p.DefaultSize, "50Mi"}} {
		if c.value != nil && c.value.Sign() <= 0 {
			errs = append(errs, field.Invalid(path.Child(c.name), c.value.String(), "it must be above 0, such as "+c.example))
		}
	}
	if n := p.MaxModels; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(path.Child("maxModels"), *n, "it must be at least 1"))
	}
	if e := p.Eviction; e != "" && e != v1alpha1.EvictionReloadCost && e != v1alpha1.EvictionLRU {
		errs = append(errs, field.NotSupported(path.Child("eviction"), e, []string{v1alpha1.EvictionReloadCost, v1alpha1.EvictionLRU}))
	}
	if n := p.ScaleUpRPM; n != nil && *n < 10 {
		errs = append(errs, field.Invalid(path.Child("scaleUpRPM"), *n, "it must be at least 10 requests a minute"))
	}
	errs = append(errs, checkPositive(path.Child("loadTimeout"), p.LoadTimeout)...)
	errs = append(errs, checkPositive(path.Child("failureExpiry"), p.FailureExpiry)...)
	errs = append(errs, checkLength(path.Child("source"), p.Source, maxPath)...)
	if m := p.Management; m != "" {
		if err := checkManagement(m); err != nil || strings.HasPrefix(m, unixScheme) {
			errs = append(errs, field.Invalid(path.Child("management"), m,
				"want port:NUMBER, such as port:8085; a socket is for an EndpointList of one address in a folder"))
		}
	}
	return append(errs, checkConstraints(path.Child("constraints"), p.Constraints)...)
}

const (
	maxConstraints = 64
	maxLabels      = 16 // per set of labels; also the number of preferred sets
	maxLabelValue  = 63 // Kubernetes' limit
)

// checkConstraints refuses two constraints for one type, and constraints without a label.
func checkConstraints(path *field.Path, all []v1alpha1.Constraint) field.ErrorList {
	var errs field.ErrorList
	if n := len(all); n > maxConstraints {
		return field.ErrorList{field.TooMany(path, n, maxConstraints)}
	}
	seen := make(map[string]bool, len(all))
	for i, c := range all {
		at := path.Index(i)
		if seen[c.ModelType] {
			errs = append(errs, field.Duplicate(at.Child("modelType"), c.ModelType))
		}
		seen[c.ModelType] = true
		errs = append(errs, checkLength(at.Child("modelType"), c.ModelType, maxType)...)
		errs = append(errs, checkLabels(at.Child("required"), c.Required)...)
		preferred := at.Child("preferred")
		if n := len(c.Preferred); n > maxLabels {
			errs = append(errs, field.TooMany(preferred, n, maxLabels))
		}
		for i, set := range c.Preferred {
			if len(set) == 0 {
				errs = append(errs, field.Required(preferred.Index(i), "name at least one label"))
			}
			errs = append(errs, checkLabels(preferred.Index(i), set)...)
		}
	}
	return errs
}

func checkLabels(path *field.Path, labels map[string]v1alpha1.LabelValue) field.ErrorList {
	var errs field.ErrorList
	if n := len(labels); n > maxLabels {
		errs = append(errs, field.TooMany(path, n, maxLabels))
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		errs = append(errs, checkLength(path.Key(key), string(labels[key]), maxLabelValue)...)
	}
	return errs
}

func checkAffinity(path *field.Path, a *v1alpha1.SessionAffinity) field.ErrorList {
	if errs := append(checkLength(path.Child("header"), a.Header, maxWord),
		checkLength(path.Child("cookie"), a.Cookie, maxWord)...); len(errs) > 0 {
		return errs
	}
	switch {
	case (a.Header == "") == (a.Cookie == ""):
		return field.ErrorList{field.Invalid(path, "", "name either a header or a cookie")}
	case a.Header != strings.ToLower(a.Header):
		return field.ErrorList{field.Invalid(path.Child("header"), a.Header, "write the header's name in lower case")}
	case strings.HasPrefix(a.Header, ":"):
		return field.ErrorList{field.Invalid(path.Child("header"), a.Header, "it is a part of the request line")}
	}
	return nil
}

func checkTimeouts(path *field.Path, t *v1alpha1.PoolTimeouts) field.ErrorList {
	var errs field.ErrorList
	for _, c := range []struct {
		name  string
		value *metav1.Duration
	}{{"request", t.Request}, {"queue", t.Queue}, {"inFlight", t.InFlight}, {"staleAfter", t.StaleAfter}, {"lostAfter", t.LostAfter}} {
		errs = append(errs, checkPositive(path.Child(c.name), c.value)...)
	}
	if t.Empty != nil && t.Empty.Duration < 0 {
		errs = append(errs, field.Invalid(path.Child("empty"), t.Empty.Duration.String(), "it must be at least 0, such as 150s"))
	}
	if t.StaleAfter != nil && t.LostAfter != nil && t.LostAfter.Duration < t.StaleAfter.Duration {
		errs = append(errs, field.Invalid(path.Child("lostAfter"), t.LostAfter.Duration.String(),
			"it must be at least as long as staleAfter"))
	}
	return errs
}

func checkPositive(path *field.Path, d *metav1.Duration) field.ErrorList {
	if d != nil && d.Duration <= 0 {
		return field.ErrorList{field.Invalid(path, d.Duration.String(), "it must be above 0, such as 30s")}
	}
	return nil
}

// SettingsOf returns the settings of each pool that a PoolSettings names, whether the pool exists
// or not: the first by [inOrder].
func SettingsOf(all []v1alpha1.PoolSettings) map[Name]*v1alpha1.PoolSettings {
	of := make(map[Name]*v1alpha1.PoolSettings)
	for _, s := range inOrder(all) {
		name := Name{s.Namespace, s.Spec.PoolRef.Name}
		if of[name] == nil {
			of[name] = &s
		}
	}
	return of
}

// inOrder sorts PoolSettings by precedence: the oldest first, then by name.
func inOrder(all []v1alpha1.PoolSettings) []v1alpha1.PoolSettings {
	ordered := slices.Clone(all)
	slices.SortStableFunc(ordered, func(a, b v1alpha1.PoolSettings) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return Name{a.Namespace, a.Name}.Compare(Name{b.Namespace, b.Name})
	})
	return ordered
}

// SettingsUse is a PoolSettings, and whether its pool uses it.
type SettingsUse struct {
	Name       Name
	UID        string // empty if objects have none
	Generation int64
	Pool       Name
	// InForce is the PoolSettings that the pool uses: this one, or an older one that names the same
	// pool. It is zero if the pool does not exist.
	InForce Name
}

// addSettings gives each pool the first of its settings, and applies them to its engines.
func (w *World) addSettings(all []v1alpha1.PoolSettings, profiles map[string]profile.Profile) {
	ordered := inOrder(all)
	for i := range ordered {
		s := &ordered[i]
		own, of := Name{s.Namespace, s.Name}, Name{s.Namespace, s.Spec.PoolRef.Name}
		p := w.Pools[of]
		switch {
		case p == nil:
			w.problem("PoolSettings %s: spec.poolRef names InferencePool %s, which does not exist", own, of)
		case p.Settings != nil:
			w.problem("PoolSettings %s: InferencePool %s already has settings of PoolSettings %s, which it keeps", own, of, p.SettingsName)
		default:
			p.Settings, p.SettingsName = &s.Spec, own
			w.addProfile(p, profiles)
		}
		use := SettingsUse{Name: own, UID: string(s.UID), Generation: s.Generation, Pool: of}
		if p != nil {
			use.InForce = p.SettingsName
		}
		w.Settings = append(w.Settings, use)
	}
}
