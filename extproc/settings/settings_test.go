package settings_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/objects"
)

func world() *objects.World {
	policy, threshold, attempts := "leastRequest", int64(7), int32(2)
	own := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine"}}
	own.Spec = v1alpha1.PoolSettingsSpec{
		PoolRef: v1alpha1.PoolReference{Name: "one"}, Policy: &policy, AdapterThreshold: &threshold,
		Retry: &v1alpha1.Retry{Attempts: &attempts}, SessionAffinity: &v1alpha1.SessionAffinity{Cookie: "sid"},
		Timeouts: &v1alpha1.PoolTimeouts{Stale: &metav1.Duration{Duration: time.Minute}, Request: &metav1.Duration{Duration: time.Hour}, Hold: &metav1.Duration{Duration: 2 * time.Minute}},
	}
	pools := []pool.InferencePool{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one"}}, {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "two"}}}
	return objects.Build(objects.Set{Pools: pools, Settings: []v1alpha1.PoolSettings{own}})
}

func TestAPoolsOwnSettingsComeFirst(t *testing.T) {
	flags := settings.Default()
	flags.Lease = time.Second
	w := world()
	got := flags.For(w.Pools[objects.Name{Namespace: "ns", Name: "one"}])
	want := settings.Settings{
		Policy: pick.Policy{Rule: pick.LeastRequest, Threshold: 7}, Picks: 3, AffinityCookie: "sid",
		Request: time.Hour, Hold: 2 * time.Minute, Lease: time.Second, Stale: time.Minute, Lost: time.Minute, // never below stale
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := flags.For(w.Pools[objects.Name{Namespace: "ns", Name: "two"}]); got != flags {
		t.Errorf("a pool without settings of its own has %+v", got)
	}
	if got := flags.For(nil); got != flags {
		t.Errorf("no pool has %+v", got)
	}
}

// The names that objects let through are those that pick knows.
func TestEveryPolicyHasItsRule(t *testing.T) {
	for _, name := range objects.Policies {
		if rule, err := pick.ParseRule(name); err != nil || rule.String() != name {
			t.Errorf("%s: %v, %v", name, rule, err)
		}
	}
}

func TestAnExplanationSaysWhereAValueComesFrom(t *testing.T) {
	const want = `pool ns/one, 0 endpoints, PoolSettings ns/mine
  policy             leastRequest     PoolSettings  how an endpoint is picked
  adapterThreshold   7                PoolSettings  requests for one adapter at one endpoint before another is looked for
  retry.attempts     2                PoolSettings  other endpoints that the data plane is told to try
  sessionAffinity    cookie sid       PoolSettings  what names a session that prefers one endpoint
  timeouts.request   1h0m0s           PoolSettings  for a whole request
  timeouts.hold      2m0s             PoolSettings  waiting for a model to be loaded
  timeouts.lease     1m0s             flags         how long a request counts whose end nothing reports
  timeouts.stale     1m0s             PoolSettings  silence after which an endpoint is used only where no other can be
  timeouts.lost      1m0s             PoolSettings  silence after which it is used only where all are silent
pool ns/two, 0 endpoints
  policy             proposal         flags         how an endpoint is picked
  adapterThreshold   32               flags         requests for one adapter at one endpoint before another is looked for
  retry.attempts     0                flags         other endpoints that the data plane is told to try
  sessionAffinity    none             flags         what names a session that prefers one endpoint
  timeouts.request   the data plane's flags         for a whole request
  timeouts.hold      5m0s             flags         waiting for a model to be loaded
  timeouts.lease     1m0s             flags         how long a request counts whose end nothing reports
  timeouts.stale     1s               flags         silence after which an endpoint is used only where no other can be
  timeouts.lost      10s              flags         silence after which it is used only where all are silent
`
	if got := settings.Default().Explain(world()); got != want {
		t.Errorf("it says\n%s", got)
	}
	if got := settings.Default().Explain(objects.Build(objects.Set{})); got != "there is no pool\n" {
		t.Errorf("of nothing it says %q", got)
	}
}
