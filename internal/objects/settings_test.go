package objects_test

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

func someSettings(name, of string, change func(*v1alpha1.PoolSettingsSpec)) v1alpha1.PoolSettings {
	s := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	s.Spec.PoolRef.Name = of
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func TestErrorsOfPoolSettings(t *testing.T) {
	policy, threshold, attempts := "best", int64(0), int32(8)
	short, long := &metav1.Duration{Duration: time.Second}, &metav1.Duration{Duration: time.Minute}
	for _, c := range []struct {
		change func(*v1alpha1.PoolSettingsSpec)
		want   string
	}{
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.PoolRef.Name = "" },
			"spec.poolRef.name: Required value: name the InferencePool, in the same namespace",
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.Policy = &policy },
			`spec.policy: Unsupported value: "best": supported values: "latency", "proposal", "leastRequest", "roundRobin", "random"`,
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.AdapterThreshold = &threshold },
			"spec.adapterThreshold: Invalid value: 0: it must be at least 1",
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.Retry = &v1alpha1.Retry{Attempts: &attempts} },
			"spec.retry.attempts: Invalid value: 8: attempts are 0 to 7",
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.DefaultModel = "a\n" },
			`spec.defaultModel: Invalid value: "a\n": no model can have this name: it holds control characters`,
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.SessionAffinity = &v1alpha1.SessionAffinity{} },
			`spec.sessionAffinity: Invalid value: "": name either a header or a cookie`,
		},
		{func(s *v1alpha1.PoolSettingsSpec) {
			s.SessionAffinity = &v1alpha1.SessionAffinity{Header: "X-Session"}
		}, `spec.sessionAffinity.header: Invalid value: "X-Session": write the header's name in lower case`},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.SessionAffinity = &v1alpha1.SessionAffinity{Header: ":path"} },
			`spec.sessionAffinity.header: Invalid value: ":path": it is a part of the request line`,
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.Placement = &v1alpha1.Placement{MaxAdapters: new(int32(0))} },
			`spec.placement.maxAdapters: Invalid value: 0: it must be at least 1`,
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.Placement = &v1alpha1.Placement{HostAdapters: new(int32(0))} },
			`spec.placement.hostAdapters: Invalid value: 0: it must be at least 1`,
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.Placement = &v1alpha1.Placement{MaxModels: new(int32(0))} },
			`spec.placement.maxModels: Invalid value: 0: it must be at least 1`,
		},
		{func(s *v1alpha1.PoolSettingsSpec) {
			s.Placement = &v1alpha1.Placement{Capacity: new(resource.MustParse("0"))}
		}, `spec.placement.capacity: Invalid value: "0": it must be above 0, such as 4Gi`},
		{func(s *v1alpha1.PoolSettingsSpec) {
			s.Placement = &v1alpha1.Placement{DefaultSize: new(resource.MustParse("-1"))}
		}, `spec.placement.defaultSize: Invalid value: "-1": it must be above 0, such as 50Mi`},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.Placement = &v1alpha1.Placement{ScaleUpRPM: new(int32(9))} },
			`spec.placement.scaleUpRPM: Invalid value: 9: it must be at least 10 requests a minute`,
		},
		{
			constrained(v1alpha1.Constraint{ModelType: "a"}, v1alpha1.Constraint{}, v1alpha1.Constraint{ModelType: "a"}),
			`spec.placement.constraints[2].modelType: Duplicate value: "a"`,
		},
		{
			constrained(v1alpha1.Constraint{ModelType: strings.Repeat("x", 513)}),
			"spec.placement.constraints[0].modelType: Too long: may not be more than 512 characters",
		},
		{
			constrained(v1alpha1.Constraint{Required: labelled("a", strings.Repeat("x", 64))}),
			"spec.placement.constraints[0].required[a]: Too long: may not be more than 63 characters",
		},
		{
			constrained(v1alpha1.Constraint{Preferred: []map[string]v1alpha1.LabelValue{labelled("a", "b"), {}}}),
			"spec.placement.constraints[0].preferred[1]: Required value: name at least one label",
		},
		{
			constrained(v1alpha1.Constraint{Preferred: []map[string]v1alpha1.LabelValue{labelled("a", strings.Repeat("x", 64))}}),
			"spec.placement.constraints[0].preferred[0][a]: Too long: may not be more than 63 characters",
		},
		{
			constrained(v1alpha1.Constraint{Preferred: slices.Repeat([]map[string]v1alpha1.LabelValue{labelled("a", "b")}, 17)}),
			"spec.placement.constraints[0].preferred: Too many: 17: must have at most 16 items",
		},
		{
			constrained(v1alpha1.Constraint{Required: manyLabels(17)}),
			"spec.placement.constraints[0].required: Too many: 17: must have at most 16 items",
		},
		{constrained(make([]v1alpha1.Constraint, 65)...), "spec.placement.constraints: Too many: 65: must have at most 64 items"},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.Placement = &v1alpha1.Placement{LoadTimeout: &metav1.Duration{}} },
			`spec.placement.loadTimeout: Invalid value: "0s": it must be above 0, such as 30s`,
		},
		{func(s *v1alpha1.PoolSettingsSpec) {
			s.Placement = &v1alpha1.Placement{FailureExpiry: &metav1.Duration{Duration: -1}}
		}, `spec.placement.failureExpiry: Invalid value: "-1ns": it must be above 0, such as 30s`},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.Timeouts = &v1alpha1.PoolTimeouts{InFlight: &metav1.Duration{}} },
			`spec.timeouts.inFlight: Invalid value: "0s": it must be above 0, such as 30s`,
		},
		{func(s *v1alpha1.PoolSettingsSpec) {
			s.Timeouts = &v1alpha1.PoolTimeouts{StaleAfter: long, LostAfter: short}
		}, `spec.timeouts.lostAfter: Invalid value: "1s": it must be at least as long as staleAfter`},
		{
			func(s *v1alpha1.PoolSettingsSpec) {
				s.Timeouts = &v1alpha1.PoolTimeouts{Empty: &metav1.Duration{Duration: -1}}
			},
			`spec.timeouts.empty: Invalid value: "-1ns": it must be at least 0, such as 150s`,
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.Flow = &v1alpha1.PoolFlow{Mode: "on"} },
			`spec.flow.mode: Unsupported value: "on": supported values: "On", "Off"`,
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.Flow = &v1alpha1.PoolFlow{RequestsPerEndpoint: new(int32(0))} },
			"spec.flow.requestsPerEndpoint: Invalid value: 0: it must be at least 1",
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.EngineToken = &v1alpha1.EngineToken{} },
			"spec.engineToken.secretRef.name: Required value: name the Secret, in the same namespace",
		},
		{
			secretOf("../other/s", ""),
			`spec.engineToken.secretRef.name: Invalid value: "../other/s": no Secret can have this name: write one such as engine-token`,
		},
		{
			secretOf("S", ""),
			`spec.engineToken.secretRef.name: Invalid value: "S": no Secret can have this name: write one such as engine-token`,
		},
		{
			secretOf("s", "a/b"),
			`spec.engineToken.secretRef.key: Invalid value: "a/b": no Secret can have this key: write one such as token`,
		},
		{
			func(s *v1alpha1.PoolSettingsSpec) { s.Authorization = "Always" },
			`spec.authorization: Unsupported value: "Always": supported values: "Client", "Engine"`,
		},
		{overTLS(v1alpha1.EngineTLS{}), "spec.engineTLS.hostname: Required value: set the DNS name in the engines' certificates"},
		{
			overTLS(v1alpha1.EngineTLS{Hostname: "*.test"}),
			`spec.engineTLS.hostname: Invalid value: "*.test": want a DNS name, such as engines.llm.svc`,
		},
		{
			overTLS(v1alpha1.EngineTLS{Hostname: "a.test", CACertificates: "none"}),
			`spec.engineTLS.caCertificates: Invalid value: "": want certificates in PEM`,
		},
		{
			overTLS(v1alpha1.EngineTLS{Hostname: "a.test", CACertificates: anAuthority + "more"}),
			`spec.engineTLS.caCertificates: Invalid value: "": want certificates in PEM`,
		},
		{
			overTLS(v1alpha1.EngineTLS{InsecureSkipVerify: true, CACertificates: anAuthority}),
			`spec.engineTLS.caCertificates: Invalid value: "": insecureSkipVerify ignores them: set only one of the two`,
		},
		{rpc("Service/Run/"), `spec.rpcConfigs[Service/Run/]: Invalid value: "Service/Run/": write methods as package.Service/Method`},
		{
			rpc("/a.Service/Run"),
			`spec.rpcConfigs[/a.Service/Run]: Invalid value: "/a.Service/Run": write methods as package.Service/Method`,
		},
		{rpc("a.Service"), `spec.rpcConfigs[a.Service]: Invalid value: "a.Service": write methods as package.Service/Method`},
		{rpc("a..S/Run"), `spec.rpcConfigs[a..S/Run]: Invalid value: "a..S/Run": write methods as package.Service/Method`},
		{rpc("a.S/Run", 1, 0), `spec.rpcConfigs[a.S/Run].idExtractionPath[1]: Invalid value: 0: field numbers go from 1 to 536870911`},
		{
			rpc("a.S/Run", 1<<29),
			`spec.rpcConfigs[a.S/Run].idExtractionPath[0]: Invalid value: 536870912: field numbers go from 1 to 536870911`,
		},
		{
			rpc("a.S/Run", 19000),
			`spec.rpcConfigs[a.S/Run].idExtractionPath[0]: Invalid value: 19000: protobuf reserves the field numbers from 19000 to 19999`,
		},
		{
			rpc("a.S/Run", slices.Repeat([]int32{1}, 17)...),
			`spec.rpcConfigs[a.S/Run].idExtractionPath: Too many: 17: must have at most 16 items`,
		},
		{func(s *v1alpha1.PoolSettingsSpec) {
			s.RPCConfigs = make(map[string]v1alpha1.RPCConfig)
			for i := range 65 {
				s.RPCConfigs["a.S/Run"+strconv.Itoa(i)] = v1alpha1.RPCConfig{}
			}
		}, `spec.rpcConfigs: Too many: 65: must have at most 64 items`},
		{secretOf("s", ".."), `spec.engineToken.secretRef.key: Invalid value: "..": no Secret can have this key: write one such as token`},
	} {
		s := someSettings("s", "base", c.change)
		if errs := objects.CheckSettings(&s); len(errs) != 1 || errs[0].Error() != c.want {
			t.Errorf("%v, want %s", errs, c.want)
		}
	}
	for what, change := range map[string]func(*v1alpha1.PoolSettingsSpec){
		"settings that say nothing":  nil,
		"a name and an authority":    overTLS(v1alpha1.EngineTLS{Hostname: "a.test", CACertificates: anAuthority + "\n" + anAuthority}),
		"a method":                   rpc("a.b_1.Service/Run", 536870911, 18999, 20000, 1),
		"a method without a package": rpc("Service/Run"),
		"a name":                     overTLS(v1alpha1.EngineTLS{Hostname: "a.test"}),
		"any certificate":            overTLS(v1alpha1.EngineTLS{InsecureSkipVerify: true}),
		"a token":                    func(s *v1alpha1.PoolSettingsSpec) { s.Authorization = "Engine" },
	} {
		if s := someSettings("s", "base", change); len(objects.CheckSettings(&s)) != 0 {
			t.Errorf("%s: they are refused", what)
		}
	}
}

func overTLS(is v1alpha1.EngineTLS) func(*v1alpha1.PoolSettingsSpec) {
	return func(s *v1alpha1.PoolSettingsSpec) { s.EngineTLS = &is }
}

// anAuthority is a certificate for engines.test without a known key.
const anAuthority = `-----BEGIN CERTIFICATE-----
MIIBmzCCAUKgAwIBAgIQMUSGHFQhSh8MnVjY06VFRjAKBggqhkjOPQQDAjAXMRUw
EwYDVQQDEwxlbmdpbmVzLnRlc3QwHhcNMjYxMTIyMTIxNTIwWhcNNDYxMTE3MTMx
NTIwWjAXMRUwEwYDVQQDEwxlbmdpbmVzLnRlc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASjF7PL+zN1tdbbia5Fv3kJ4wZAJE2RmmFaNZ8Tdo0hgQpLymmkfqiZ
MZQHccQ32GytcRzqd4+iWilmG5wJ7hx0o3AwbjAOBgNVHQ8BAf8EBAMCAoQwEwYD
VR0lBAwwCgYIKwYBBQUHAwEwDwYDVR0TAQH/BAUwAwEB/zAdBgNVHQ4EFgQUa7SJ
Jm3793ls50zY8nB+KAL/smswFwYDVR0RBBAwDoIMZW5naW5lcy50ZXN0MAoGCCqG
SM49BAMCA0cAMEQCIBdMLXE6z6XtO2+b50F542xQitDPrUiRSapuAsLc8gVmAiBG
ypa0/wHLN+V/kZJt56GALay1bBNMuc3GjUPEai1ExA==
-----END CERTIFICATE-----
`

// In an API server, settings that put a token on requests must name the token; in a folder the
// token comes from the command line.
func TestRequestsCarryATokenThatIsNamed(t *testing.T) {
	s := someSettings("s", "base", func(s *v1alpha1.PoolSettingsSpec) { s.Authorization = "Engine" })
	const want = "spec.engineToken: Required value: name the engines' token in engineToken"
	if errs := objects.CheckServerSettings(&s); len(errs) != 1 || errs[0].Error() != want {
		t.Errorf("an API server's: %v", errs)
	}
	if errs := objects.CheckFolderSettings(&s); len(errs) > 0 {
		t.Errorf("a folder's: %v", errs)
	}
	secretOf("s", "")(&s.Spec)
	if errs := objects.CheckServerSettings(&s); len(errs) > 0 {
		t.Errorf("with a token: %v", errs)
	}
}

// The owner's pools decide how an engine's certificate is verified, as they decide its token.
func TestOwnersTLSSettingsApply(t *testing.T) {
	mine, theirs := someSettings("a", "base", overTLS(v1alpha1.EngineTLS{Hostname: "a.test"})),
		someSettings("b", "other", overTLS(v1alpha1.EngineTLS{Hostname: "b.test"}))
	theirs.Namespace = "elsewhere"
	of := func(namespace, name, protocol string) pool.InferencePool {
		p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		p.Spec.Selector.MatchLabels, p.Spec.TargetPorts, p.Spec.AppProtocol = map[string]string{"app": name}, []pool.Port{{Number: 8000}},
			protocol
		return p
	}
	list := objects.List{EndpointList: v1alpha1.EndpointList{ObjectMeta: metav1.ObjectMeta{
		Namespace: "elsewhere", Name: "l",
		Labels: map[string]string{"app": "other"},
	}}}
	list.Spec.Addresses = []string{"10.0.0.1:8000"}
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{of(mine.Namespace, "base", ""), of("elsewhere", "other", pool.H2C)},
		Pods: []objects.Pod{{
			Name: objects.Name{Namespace: mine.Namespace, Name: "p"}, IP: netip.MustParseAddr("10.0.0.1"), Ready: true,
			Labels: map[string]string{"app": "base"},
		}},
		Lists:    []objects.List{list},
		Settings: []v1alpha1.PoolSettings{mine, theirs},
	})
	if e := w.Engines; len(e) != 1 || e[0].TLS.Hostname != "a.test" || e[0].H2C {
		t.Errorf("the engines are %+v", e)
	}
	if !w.Owns(mine.Namespace, "10.0.0.1:8000") || w.Owns("elsewhere", "10.0.0.1:8000") || w.Owns(mine.Namespace, "10.0.0.2:8000") {
		t.Error("it is not known whose the engine is")
	}
}

func secretOf(name, key string) func(*v1alpha1.PoolSettingsSpec) {
	return func(s *v1alpha1.PoolSettingsSpec) {
		s.EngineToken = &v1alpha1.EngineToken{SecretRef: v1alpha1.SecretKeyReference{Name: name, Key: key}}
	}
}

// Settings in a folder cannot name a Secret: the command line sets the engines' token.
func TestFolderSettingsCannotNameASecret(t *testing.T) {
	s := someSettings("s", "base", secretOf("engine-token", "A.k_-1"))
	if errs := objects.CheckSettings(&s); len(errs) != 0 {
		t.Errorf("an API server's: %v", errs)
	}
	const want = "spec.engineToken: Forbidden: engine tokens cannot come from a folder: remove it, and set --engine-token-file"
	if errs := objects.CheckFolderSettings(&s); len(errs) != 1 || errs[0].Error() != want {
		t.Errorf("a folder's: %v", errs)
	}
	s = someSettings("s", "", nil)
	if errs := objects.CheckFolderSettings(&s); len(errs) != 1 {
		t.Errorf("a folder's without a pool: %v", errs)
	}
}

func TestFirstSettingsOfAPoolApply(t *testing.T) {
	w := objects.Build(objects.Set{
		Pools:    []pool.InferencePool{aPool("base", llama, 8000), aPool("other", llama, 8001)},
		Settings: []v1alpha1.PoolSettings{someSettings("b", "base", nil), someSettings("a", "base", nil), someSettings("c", "none", nil)},
	})
	base, other := w.Pools[objects.Name{Namespace: "default", Name: "base"}], w.Pools[objects.Name{Namespace: "default", Name: "other"}]
	if base.Settings == nil || base.SettingsName.Name != "a" || other.Settings != nil {
		t.Errorf("the pools have %v of %v, and %v", base.Settings, base.SettingsName, other.Settings)
	}
	problems := strings.Join(w.Problems, "\n")
	for _, want := range []string{
		"PoolSettings default/b: InferencePool default/base already has settings of PoolSettings default/a, which it keeps",
		"PoolSettings default/c: spec.poolRef names InferencePool default/none, which does not exist",
	} {
		if !strings.Contains(problems, want) {
			t.Errorf("the problems are\n%s\nwant\n%s", problems, want)
		}
	}
}

func TestPoolOfAGateway(t *testing.T) {
	picked := func(name, namespace, service string, port int32) pool.InferencePool {
		p := aPool(name, llama, 8000)
		p.Namespace = namespace
		p.Spec.EndpointPickerRef = &pool.EndpointPickerRef{Name: service}
		if port != 0 {
			p.Spec.EndpointPickerRef.Port = &pool.Port{Number: port}
		}
		return p
	}
	w := objects.Build(objects.Set{Pools: []pool.InferencePool{
		picked("one", "a", "picker", 9002), picked("two", "a", "picker", 9012), picked("three", "b", "picker", 9002),
		picked("four", "b", "own", 0), aPool("five", llama, 8000),
	}})
	for _, c := range []struct {
		authority string
		port      int32
		want      string
	}{
		{"picker.a:9012", 0, "two"},
		{"picker.a.svc:9002", 9002, "one"},
		{"picker.a.svc.cluster.local", 9012, "two"},
		{"picker.a.svc.cluster.local", 0, ""}, // matches the pools one and two
		{"picker:9002", 0, ""},                // matches the pools one and three
		{"picker:9012", 0, "two"},
		{"picker.b", 0, "three"},
		{"outbound|9012||picker.a.svc.cluster.local", 9002, "two"},
		{"own.b:7777", 7777, "four"},
		{"own", 0, "four"},
		{"localhost:9012", 9012, "two"}, // found by the port alone
		{"10.0.0.1:9012", 9012, "two"},
		{"[::1]:9012", 9012, "two"},
		{"10.0.0.1:9002", 9002, ""}, // matches the pools one and three
		{"", 9012, "two"},
		{"", 0, ""},
		{"nobody:1", 1, ""},
		{":::", 0, ""},
	} {
		got, ok := w.PoolOf(c.authority, c.port)
		if got.Name != c.want || ok != (c.want != "") {
			t.Errorf("%q, port %d: %v, %v, want %q", c.authority, c.port, got, ok, c.want)
		}
	}
}

// rpc configures one method.
func rpc(method string, path ...int32) func(*v1alpha1.PoolSettingsSpec) {
	return func(s *v1alpha1.PoolSettingsSpec) {
		s.RPCConfigs = map[string]v1alpha1.RPCConfig{method: {IDExtractionPath: path}}
	}
}

func constrained(all ...v1alpha1.Constraint) func(*v1alpha1.PoolSettingsSpec) {
	return func(s *v1alpha1.PoolSettingsSpec) { s.Placement = &v1alpha1.Placement{Constraints: all} }
}

func labelled(key, value string) map[string]v1alpha1.LabelValue {
	return map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}
}

func manyLabels(n int) map[string]v1alpha1.LabelValue {
	all := make(map[string]v1alpha1.LabelValue)
	for i := range n {
		all[strconv.Itoa(i)] = "x"
	}
	return all
}
