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

// Policies are the names that spec.policy of a PoolSettings may have. Package pick has the rules of these names.
var Policies = []string{"latency", "proposal", "leastRequest", "roundRobin", "random"}

// MaxAttempts bounds how many other endpoints an answer names.
const MaxAttempts = 7

// CheckSettings returns what is wrong with a PoolSettings by itself.
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

// Authorizations are what spec.authorization of a PoolSettings may be.
var Authorizations = []string{"Client", v1alpha1.AuthorizationOfEngine}

// CheckServerSettings returns what is wrong with a PoolSettings of an API server.
func CheckServerSettings(s *v1alpha1.PoolSettings) field.ErrorList {
	errs := CheckSettings(s)
	if s.Spec.Authorization == v1alpha1.AuthorizationOfEngine && s.Spec.EngineToken == nil {
		errs = append(errs, field.Required(field.NewPath("spec", "engineToken"), "name the token that engines are to get, in engineToken"))
	}
	if p := s.Spec.Profile; p != nil {
		errs = append(errs, checkServerProfile(field.NewPath("spec", "profile"), p)...)
	}
	return errs
}

// checkTLS refuses what nobody could be known by.
func checkTLS(path *field.Path, t *v1alpha1.EngineTLS) field.ErrorList {
	var errs field.ErrorList
	switch name := path.Child("hostname"); {
	case t.Hostname == "" && !t.InsecureSkipVerify:
		errs = append(errs, field.Required(name, "name what the engines' certificates are for"))
	case t.Hostname != "" && len(validation.IsDNS1123Subdomain(t.Hostname)) > 0:
		errs = append(errs, field.Invalid(name, t.Hostname, "want a DNS name, such as engines.llm.svc"))
	}
	switch cas := path.Child("caCertificates"); {
	case t.CACertificates == "":
	case t.InsecureSkipVerify:
		errs = append(errs, field.Invalid(cas, "", "with insecureSkipVerify nobody looks at them"))
	default:
		errs = append(errs, checkLength(cas, t.CACertificates, maxCertificates)...)
		if !certificates(t.CACertificates) {
			errs = append(errs, field.Invalid(cas, "", "want certificates in PEM"))
		}
	}
	return errs
}

// maxCertificates bounds what a PoolSettings has of certificates.
const maxCertificates = 65536

// certificates says whether a text is one certificate in PEM, or several.
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

// CheckFolderSettings returns what is wrong with a PoolSettings of a folder.
func CheckFolderSettings(s *v1alpha1.PoolSettings) field.ErrorList {
	errs := CheckSettings(s)
	if s.Spec.EngineToken != nil {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "engineToken"), "tokens of engines are not read from a folder: leave it out, and say --engine-token-file"))
	}
	if s.Spec.Profile != nil {
		errs = append(errs, checkFolderProfile(field.NewPath("spec", "profile"), &s.Spec)...)
	}
	return errs
}

// ServiceTypes are those that spec.service.type of a GatewaySettings may name.
var ServiceTypes = []string{"LoadBalancer", "ClusterIP", "NodePort"}

// CheckGatewaySettings returns what is wrong with a GatewaySettings.
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
		errs = append(errs, checkPositive(spec.Child("timeouts", "silence"), t.Silence)...)
	}
	if copies := s.Spec.Payloads; copies != nil {
		errs = append(errs, checkProcessors(spec.Child("payloads", "processors"), copies.Processors)...)
	}
	return errs
}

// maxSinks is how many sinks a GatewaySettings may name, and maxSink how many characters each may have.
const maxSinks, maxSink = 16, 2048

// sinks are URLs to which copies of payloads may go. What they say in full is extproc's to read.
var sinks = regexp.MustCompile(`^(https?|logger)://[^\s]+$`)

func checkProcessors(path *field.Path, all []string) field.ErrorList {
	errs := checkCount(path, len(all), maxSinks)
	for i, url := range all {
		errs = append(errs, checkLength(path.Index(i), url, maxSink)...)
		if !sinks.MatchString(url) {
			errs = append(errs, field.Invalid(path.Index(i), url, "write the URL of a sink, such as https://sink.example/payloads, or logger://*"))
		}
	}
	return errs
}

// checkSecret refuses what names no Secret, or no key of one.
func checkSecret(path *field.Path, ref v1alpha1.SecretKeyReference) field.ErrorList {
	var errs field.ErrorList
	switch name := path.Child("name"); {
	case ref.Name == "":
		errs = append(errs, field.Required(name, "name the Secret, in the same namespace"))
	case len(validation.IsDNS1123Subdomain(ref.Name)) > 0:
		errs = append(errs, field.Invalid(name, ref.Name, "no Secret can have this name: write one such as engine-token"))
	}
	if ref.Key != "" && len(validation.IsConfigMapKey(ref.Key)) > 0 { // those of Secrets are the same
		errs = append(errs, field.Invalid(path.Child("key"), ref.Key, "no Secret can have this key: write one such as token"))
	}
	return errs
}

// Secret is a key of a Secret with the token of a pool's engines, which a PoolSettings of its namespace names.
type Secret struct {
	Name Name
	Key  string
	// Settings is the PoolSettings that names it.
	Settings Name
}

// DefaultKey is the key of a Secret of which no key is named.
const DefaultKey = "token"

// Ref is the reference to the token, "namespace/name/key".
func (s Secret) Ref() string { return s.Name.String() + "/" + s.Key }

// secret is the one that the settings of a pool name, and whether they name one.
func (p *Pool) secret() (Secret, bool) {
	if p.Settings == nil || p.Settings.EngineToken == nil {
		return Secret{}, false
	}
	ref := p.Settings.EngineToken.SecretRef
	return Secret{Name{p.Name.Namespace, ref.Name}, cmp.Or(ref.Key, DefaultKey), p.SettingsName}, true
}

// TokenRef is the reference to the token of the pool's engines ([Secret.Ref]), empty where its settings name none.
func (p *Pool) TokenRef() string {
	s, named := p.secret()
	if !named {
		return ""
	}
	return s.Ref()
}

// ReplacesAuthorization says whether requests carry the token of the pool's engines, and not what clients send.
func (p *Pool) ReplacesAuthorization() bool {
	return p != nil && p.Settings != nil && p.Settings.Authorization == v1alpha1.AuthorizationOfEngine
}

// Secrets are those that the settings of pools name, in order, each once: with the first of several settings that name it.
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
	if e := p.Eviction; e != "" && e != v1alpha1.EvictionMissed && e != v1alpha1.EvictionLRU {
		errs = append(errs, field.NotSupported(path.Child("eviction"), e, []string{v1alpha1.EvictionMissed, v1alpha1.EvictionLRU}))
	}
	if n := p.ScaleUpRPM; n != nil && *n < 10 {
		errs = append(errs, field.Invalid(path.Child("scaleUpRPM"), *n, "it must be at least 10 requests a minute"))
	}
	errs = append(errs, checkPositive(path.Child("loadTimeout"), p.LoadTimeout)...)
	errs = append(errs, checkPositive(path.Child("failureExpiry"), p.FailureExpiry)...)
	errs = append(errs, checkLength(path.Child("source"), p.Source, maxPath)...)
	if m := p.Management; m != "" {
		if err := checkManagement(m); err != nil || strings.HasPrefix(m, unixScheme) {
			errs = append(errs, field.Invalid(path.Child("management"), m, "want port:NUMBER, such as port:8085; a socket is for an EndpointList of one address in a folder"))
		}
	}
	return append(errs, checkConstraints(path.Child("constraints"), p.Constraints)...)
}

const (
	maxConstraints = 64
	maxLabels      = 16 // of a set that a constraint names, and how many such sets are preferred
	maxLabelValue  = 63 // Kubernetes' own
)

// checkConstraints refuses what says of a type twice where its models may be loaded, or names no label.
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
	if errs := append(checkLength(path.Child("header"), a.Header, maxWord), checkLength(path.Child("cookie"), a.Cookie, maxWord)...); len(errs) > 0 {
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
	}{{"request", t.Request}, {"hold", t.Hold}, {"lease", t.Lease}, {"stale", t.Stale}, {"lost", t.Lost}} {
		errs = append(errs, checkPositive(path.Child(c.name), c.value)...)
	}
	if t.Stale != nil && t.Lost != nil && t.Lost.Duration < t.Stale.Duration {
		errs = append(errs, field.Invalid(path.Child("lost"), t.Lost.Duration.String(), "it must be at least as long as stale"))
	}
	return errs
}

func checkPositive(path *field.Path, d *metav1.Duration) field.ErrorList {
	if d != nil && d.Duration <= 0 {
		return field.ErrorList{field.Invalid(path, d.Duration.String(), "it must be above 0, such as 30s")}
	}
	return nil
}

// SettingsOf returns the settings of each pool that PoolSettings name, whether it is there or not: the first of those that [inOrder] has.
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

// inOrder puts PoolSettings in the order in which they count: the oldest first, then the first by name.
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

// addSettings gives each pool its settings, the first of several, and what these say of its engines.
func (w *World) addSettings(all []v1alpha1.PoolSettings, profiles map[string]profile.Profile) {
	ordered := inOrder(all)
	for i := range ordered {
		s := &ordered[i]
		own, of := Name{s.Namespace, s.Name}, Name{s.Namespace, s.Spec.PoolRef.Name}
		switch p := w.Pools[of]; {
		case p == nil:
			w.problem("PoolSettings %s: spec.poolRef names InferencePool %s, which does not exist", own, of)
		case p.Settings != nil:
			w.problem("PoolSettings %s: InferencePool %s already has settings of PoolSettings %s, which it keeps", own, of, p.SettingsName)
		default:
			p.Settings, p.SettingsName = &s.Spec, own
			w.addProfile(p, profiles)
		}
	}
}
