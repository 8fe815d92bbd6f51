package objects_test

import (
	"slices"
	"testing"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// The first pool by name that configures a method decides, among the pools that a call may be for.
// The default applies if one of them does not configure it.
func TestFirstPoolConfiguresAMethod(t *testing.T) {
	says := func(own map[string]v1alpha1.RPCConfig) func(*v1alpha1.PoolSettingsSpec) {
		return func(s *v1alpha1.PoolSettingsSpec) { s.RPCConfigs = own }
	}
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("d", nil, 1), aPool("c", nil, 1), aPool("b", nil, 1), aPool("a", nil, 1)},
		Settings: []v1alpha1.PoolSettings{
			someSettings("1", "c", says(map[string]v1alpha1.RPCConfig{
				"x.S/M":    {IDExtractionPath: []int32{3}},
				"x.S/Same": {IDExtractionPath: []int32{1}},
			})),
			someSettings("2", "b", says(map[string]v1alpha1.RPCConfig{
				"x.S/M":    {IDExtractionPath: []int32{2, 1}, VModelID: true},
				"x.S/Same": {IDExtractionPath: []int32{1}}, "x.S/Headers": {},
			})),
			someSettings("3", "a", nil),
			someSettings("4", "d", says(map[string]v1alpha1.RPCConfig{"x.S/Same": {IDExtractionPath: []int32{1}, VModelID: true}})),
		},
	})
	for _, c := range []struct {
		method string
		pools  string // candidate pools
		path   []uint32
		vmodel bool
		said   bool
	}{
		{"x.S/M", "abcd", []uint32{2, 1}, true, true},
		{"x.S/M", "bc", []uint32{2, 1}, true, true},
		{"x.S/M", "ac", []uint32{3}, false, true},
		{"x.S/M", "ad", nil, false, false},
		{"x.S/M", "a", nil, false, false},
		{"x.S/M", "d", nil, false, true}, // replaces the default
		{"x.S/M", "", nil, false, false},
		{"x.S/Headers", "abc", nil, false, true},
		{"x.S/Other", "abcd", nil, false, false},
		{"x.S/Other", "bcd", nil, false, true},
		{"x.S/Same", "d", []uint32{1}, true, true},
	} {
		rpc, said := w.RPC(c.method, func(p objects.Name) bool { return slices.Contains([]byte(c.pools), p.Name[0]) })
		if said != c.said || rpc.VModel != c.vmodel || !slices.Equal(rpc.Path, c.path) {
			t.Errorf("%s for %s: %+v, %v", c.method, c.pools, rpc, said)
		}
	}
	if want := []string{
		"rpcConfigs of the PoolSettings of InferencePool default/c differ for the gRPC method x.S/M from those of InferencePool default/b: the latter apply to calls that may be for either pool",
		"rpcConfigs of the PoolSettings of InferencePool default/d differ for the gRPC method x.S/Same from those of InferencePool default/b: the latter apply to calls that may be for either pool",
	}; !slices.Equal(w.Problems, want) {
		t.Errorf("problems are %q, want %q", w.Problems, want)
	}
	if rpc, said := objects.Build(objects.Set{Pools: []pool.InferencePool{aPool("a", nil, 1)}}).RPC("x.S/M", func(objects.Name) bool {
		return true
	}); said {
		t.Errorf("where nobody says anything it is %+v", rpc)
	}
}

func TestMethodsOfAPool(t *testing.T) {
	named := map[string]v1alpha1.RPCConfig{"x.S/M": {}}
	for what, c := range map[string]struct {
		pool         *objects.Pool
		named, other bool
	}{
		"no pool":                  {nil, true, true},
		"no settings":              {&objects.Pool{}, true, true},
		"settings of other things": {&objects.Pool{Settings: &v1alpha1.PoolSettingsSpec{}}, true, true},
		"methods":                  {&objects.Pool{Settings: &v1alpha1.PoolSettingsSpec{RPCConfigs: named}}, true, true},
		"methods and others": {
			&objects.Pool{Settings: &v1alpha1.PoolSettingsSpec{RPCConfigs: named, AllowOtherRPCs: new(true)}},
			true, true,
		},
		"methods alone": {&objects.Pool{Settings: &v1alpha1.PoolSettingsSpec{RPCConfigs: named, AllowOtherRPCs: new(false)}}, true, false},
		"none":          {&objects.Pool{Settings: &v1alpha1.PoolSettingsSpec{AllowOtherRPCs: new(false)}}, false, false},
	} {
		if got := c.pool.TakesRPC("x.S/M"); got != c.named {
			t.Errorf("%s: the method is taken: %v", what, got)
		}
		if got := c.pool.TakesRPC("x.S/Other"); got != c.other {
			t.Errorf("%s: another is taken: %v", what, got)
		}
	}
}
