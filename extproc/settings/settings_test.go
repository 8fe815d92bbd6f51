package settings_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
)

func world() *objects.World {
	policy, threshold, attempts := "leastRequest", int64(7), int32(2)
	own := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine"}}
	own.Spec = v1alpha1.PoolSettingsSpec{
		PoolRef: v1alpha1.PoolReference{Name: "one"}, Policy: &policy, AdapterThreshold: &threshold,
		Retry: &v1alpha1.Retry{Attempts: &attempts, Unavailable: new(false)}, DefaultModel: "org/m",
		SessionAffinity: &v1alpha1.SessionAffinity{Cookie: "sid"},
		Timeouts: &v1alpha1.PoolTimeouts{
			StaleAfter: &metav1.Duration{Duration: time.Minute},
			Request:    &metav1.Duration{Duration: time.Hour}, Queue: &metav1.Duration{Duration: 2 * time.Minute},
			Empty: &metav1.Duration{Duration: time.Second},
		},
		Flow:       &v1alpha1.PoolFlow{Mode: "Off", RequestsPerEndpoint: new(int32(64))},
		Profile:    &v1alpha1.PoolProfile{Hardware: "4xA100-80GB", Parameters: "70B"},
		RPCConfigs: map[string]v1alpha1.RPCConfig{"d.E/F": {}, "a.B/C": {IDExtractionPath: []int32{1}}}, AllowOtherRPCs: new(false),
	}
	pools := []pool.InferencePool{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "two"}},
	}
	return objects.Build(objects.Set{Pools: pools, Settings: []v1alpha1.PoolSettings{own}})
}

func TestPoolSettingsTakePrecedence(t *testing.T) {
	flags := settings.Default()
	flags.InFlightTimeout = time.Second
	w := world()
	got := flags.For(w.Pools[objects.Name{Namespace: "ns", Name: "one"}])
	want := settings.Settings{
		Policy: pick.Policy{Rule: pick.LeastRequest, Threshold: 7}, EndpointsPerRequest: 3, FinalUnavailable: true, AffinityCookie: "sid",
		DefaultModel: "org/m", EmptyTimeout: time.Second, RequestsPerEndpoint: 64,
		// LostAfter is never less than StaleAfter
		Request: time.Hour, QueueTimeout: 2 * time.Minute, InFlightTimeout: time.Second, StaleAfter: time.Minute, LostAfter: time.Minute,
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := flags.For(w.Pools[objects.Name{Namespace: "ns", Name: "two"}]); got != flags {
		t.Errorf("a pool without its own settings has %+v", got)
	}
	if got := flags.For(nil); got != flags {
		t.Errorf("no pool has %+v", got)
	}
}

// Package pick knows every policy name that objects accept.
func TestEveryPolicyHasItsRule(t *testing.T) {
	for _, name := range objects.Policies {
		if rule, err := pick.ParseRule(name); err != nil || rule.String() != name {
			t.Errorf("%s: %v, %v", name, rule, err)
		}
	}
}

func TestLinesNameTheirObjects(t *testing.T) {
	flags := settings.Default()
	flags.QueueTimeout = 2 * time.Minute // the same value as in the PoolSettings
	w := world()
	for pool, want := range map[string]string{
		"one": `policy = leastRequest, own
adapterThreshold = 7, own
retry.attempts = 2, own
retry.unavailable = false, own
sessionAffinity = cookie sid, own
defaultModel = org/m, own
flow.mode = Off, own
flow.requestsPerEndpoint = 64, own
timeouts.request = 1h0m0s, own
timeouts.queue = 2m0s, own
timeouts.empty = 1s, unused while flow.mode is Off, own
timeouts.inFlight = 1m0s, --in-flight-timeout
timeouts.staleAfter = 1m0s, own
timeouts.lostAfter = 1m0s, own
rpcConfigs = a.B/C, d.E/F, own
allowOtherRpcs = false, own
profile = 70B of parameters on 4 x A100-80GB, own
predictions = none: the policy uses none, own
`,
		"two": `policy = latency, --policy
adapterThreshold = 32, --adapter-threshold
retry.attempts = 0, --endpoints-per-request
retry.unavailable = true, --
sessionAffinity = none, --
defaultModel = none, --
flow.mode = On, --
flow.requestsPerEndpoint = no limit, --
timeouts.request = the data plane's, --
timeouts.queue = 2m0s, --max-queue-time
timeouts.empty = none, --
timeouts.inFlight = 1m0s, --in-flight-timeout
timeouts.staleAfter = 1s, --stale-after
timeouts.lostAfter = 10s, --lost-after
rpcConfigs = the built-in ones, --
allowOtherRpcs = true, --
profile = none, --
predictions = trusted once they are accurate, and policy proposal until then: the pool has no profile, --
`,
	} {
		var got strings.Builder
		for _, l := range flags.Lines(w.Pools[objects.Name{Namespace: "ns", Name: pool}]) {
			whose := "--" + l.Flag
			if l.Own {
				whose = "own"
			}
			fmt.Fprintf(&got, "%s = %s, %s\n", l.Name, l.Value, whose)
		}
		if got.String() != want {
			t.Errorf("pool %s has\n%s", pool, got.String())
		}
	}
}

// The predictions of a pool are trusted depending on which of its accelerators have profiles.
func TestWhenPredictionsAreTrusted(t *testing.T) {
	a, b := objects.Endpoint{Class: "a"}, objects.Endpoint{Class: "b"}
	said, pinned := &objects.Said{}, &objects.Said{Pinned: true}
	for _, c := range []struct {
		of   objects.Pool
		want string // beginning of the expected text
	}{
		{objects.Pool{}, "trusted once they are accurate, and policy proposal until then"},
		{objects.Pool{Profile: &profile.Profile{}}, "trusted until they turn out wrong"},
		{objects.Pool{Profile: &profile.Profile{}, Pinned: true}, "trusted: the profile is pinned"},
		{objects.Pool{Endpoints: []objects.Endpoint{a, b}, Classes: map[string]*objects.Said{"a": said}}, "trusted once"},
		{objects.Pool{Endpoints: []objects.Endpoint{a}, Classes: map[string]*objects.Said{"a": said}}, "trusted until"},
		{objects.Pool{Endpoints: []objects.Endpoint{a, b}, Classes: map[string]*objects.Said{"a": pinned, "b": said}}, "trusted until"},
		{
			objects.Pool{Endpoints: []objects.Endpoint{a, b}, Classes: map[string]*objects.Said{"a": pinned, "b": pinned}},
			"trusted: the profile is pinned",
		},
		{
			objects.Pool{Endpoints: []objects.Endpoint{a, b}, Classes: map[string]*objects.Said{"a": pinned}, Profile: &profile.Profile{}},
			"trusted until",
		},
	} {
		lines := settings.Default().Lines(&c.of)
		last := lines[len(lines)-1]
		if last.Name != "predictions" || !strings.HasPrefix(last.Value, c.want) {
			t.Errorf("%+v: %s = %s, want %s", c.of, last.Name, last.Value, c.want)
		}
		for class, is := range c.of.Classes {
			want := settings.Line{Name: "profile.classes[" + class + "]", Value: "unnamed" +
				map[bool]string{true: ", pinned"}[is.Pinned], Means: "service times of engines on this accelerator", Own: true}
			if !slices.Contains(lines, want) {
				t.Errorf("the line %+v is missing", want)
			}
		}
	}
}

// A PoolSettings may name every policy of pick, and no other.
func TestPoolMayHaveEveryPolicy(t *testing.T) {
	var all []string
	for rule := pick.Proposal; rule <= pick.Latency; rule++ {
		all = append(all, rule.String())
	}
	slices.Sort(all)
	if may := slices.Sorted(slices.Values(objects.Policies)); !slices.Equal(may, all) {
		t.Errorf("objects accept %v, and policies are %v", may, all)
	}
}

func TestOtherMethodsAreAllowedByName(t *testing.T) {
	p := objects.Pool{Settings: &v1alpha1.PoolSettingsSpec{AllowOtherRPCs: new(true)}}
	lines := settings.Default().Lines(&p)
	if i := slices.IndexFunc(lines, func(l settings.Line) bool { return l.Name == "allowOtherRpcs" }); lines[i].Value != "true" ||
		!lines[i].Own {
		t.Errorf("allowOtherRpcs is %+v", lines[i])
	}
}
