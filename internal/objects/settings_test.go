package objects_test

import (
	"strings"
	"testing"
	"time"

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

func TestFaultsOfPoolSettings(t *testing.T) {
	policy, threshold, attempts := "best", int64(0), int32(8)
	short, long := &metav1.Duration{Duration: time.Second}, &metav1.Duration{Duration: time.Minute}
	for _, c := range []struct {
		change func(*v1alpha1.PoolSettingsSpec)
		want   string
	}{
		{func(s *v1alpha1.PoolSettingsSpec) { s.PoolRef.Name = "" }, "spec.poolRef.name: Required value: name the InferencePool, in the same namespace"},
		{func(s *v1alpha1.PoolSettingsSpec) { s.Policy = &policy }, `spec.policy: Unsupported value: "best": supported values: "proposal", "leastRequest", "roundRobin", "random"`},
		{func(s *v1alpha1.PoolSettingsSpec) { s.AdapterThreshold = &threshold }, "spec.adapterThreshold: Invalid value: 0: it must be at least 1"},
		{func(s *v1alpha1.PoolSettingsSpec) { s.Retry = &v1alpha1.Retry{Attempts: &attempts} }, "spec.retry.attempts: Invalid value: 8: attempts are 0 to 7"},
		{func(s *v1alpha1.PoolSettingsSpec) { s.SessionAffinity = &v1alpha1.SessionAffinity{} }, `spec.sessionAffinity: Invalid value: "": name either a header or a cookie`},
		{func(s *v1alpha1.PoolSettingsSpec) {
			s.SessionAffinity = &v1alpha1.SessionAffinity{Header: "X-Session"}
		}, `spec.sessionAffinity.header: Invalid value: "X-Session": write the header's name in lower case`},
		{func(s *v1alpha1.PoolSettingsSpec) { s.SessionAffinity = &v1alpha1.SessionAffinity{Header: ":path"} }, `spec.sessionAffinity.header: Invalid value: ":path": it is a part of the request line`},
		{func(s *v1alpha1.PoolSettingsSpec) { s.Timeouts = &v1alpha1.PoolTimeouts{Lease: &metav1.Duration{}} }, `spec.timeouts.lease: Invalid value: "0s": it must be above 0, such as 30s`},
		{func(s *v1alpha1.PoolSettingsSpec) { s.Timeouts = &v1alpha1.PoolTimeouts{Stale: long, Lost: short} }, `spec.timeouts.lost: Invalid value: "1s": it must be at least as long as stale`},
		{func(s *v1alpha1.PoolSettingsSpec) { s.EngineToken = &v1alpha1.EngineToken{} }, "spec.engineToken.secretRef.name: Required value: name the Secret, in the same namespace"},
		{secretOf("../other/s", ""), `spec.engineToken.secretRef.name: Invalid value: "../other/s": no Secret can have this name: write one such as engine-token`},
		{secretOf("S", ""), `spec.engineToken.secretRef.name: Invalid value: "S": no Secret can have this name: write one such as engine-token`},
		{secretOf("s", "a/b"), `spec.engineToken.secretRef.key: Invalid value: "a/b": no Secret can have this key: write one such as token`},
		{secretOf("s", ".."), `spec.engineToken.secretRef.key: Invalid value: "..": no Secret can have this key: write one such as token`},
	} {
		s := someSettings("s", "base", c.change)
		if errs := objects.CheckSettings(&s); len(errs) != 1 || errs[0].Error() != c.want {
			t.Errorf("%v, want %s", errs, c.want)
		}
	}
	if s := someSettings("s", "base", nil); len(objects.CheckSettings(&s)) != 0 {
		t.Error("settings that say nothing are refused")
	}
}

func secretOf(name, key string) func(*v1alpha1.PoolSettingsSpec) {
	return func(s *v1alpha1.PoolSettingsSpec) {
		s.EngineToken = &v1alpha1.EngineToken{SecretRef: v1alpha1.SecretKeyReference{Name: name, Key: key}}
	}
}

// In a folder there is no second way to say the token of its engines.
func TestSettingsOfAFolderNameNoSecret(t *testing.T) {
	s := someSettings("s", "base", secretOf("engine-token", "A.k_-1"))
	if errs := objects.CheckSettings(&s); len(errs) != 0 {
		t.Errorf("an API server's: %v", errs)
	}
	const want = "spec.engineToken: Forbidden: tokens of engines are not read from a folder: leave it out, and say --engine-token-file"
	if errs := objects.CheckFolderSettings(&s); len(errs) != 1 || errs[0].Error() != want {
		t.Errorf("a folder's: %v", errs)
	}
	s = someSettings("s", "", nil)
	if errs := objects.CheckFolderSettings(&s); len(errs) != 1 {
		t.Errorf("a folder's without a pool: %v", errs)
	}
}

func TestAPoolHasTheSettingsOfTheFirstThatNamesIt(t *testing.T) {
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

func TestThePoolThatAGatewayMeans(t *testing.T) {
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
		{"picker.a.svc.cluster.local", 0, ""}, // one or two
		{"picker:9002", 0, ""},                // one or three
		{"picker:9012", 0, "two"},
		{"picker.b", 0, "three"},
		{"outbound|9012||picker.a.svc.cluster.local", 9002, "two"},
		{"own.b:7777", 7777, "four"},
		{"own", 0, "four"},
		{"localhost:9012", 9012, "two"}, // by the port alone
		{"10.0.0.1:9012", 9012, "two"},
		{"[::1]:9012", 9012, "two"},
		{"10.0.0.1:9002", 9002, ""}, // one or three
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
