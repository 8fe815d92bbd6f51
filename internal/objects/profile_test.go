package objects_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/profile/table"
)

// written is a profile in YAML with a different number in each field; figures is the same profile
// parsed.
var (
	written = v1alpha1.EngineProfile{
		Name: "8B", Source: "measured", FrontendOverhead: 0.005,
		Prefill:     v1alpha1.PrefillTimes{Floor: 0.01, Base: 0.02, PerToken: 0.03, PerTokenSquared: 0.04, MaxMeasuredTokens: 8192},
		Decode:      v1alpha1.DecodeTimes{Base: 0.05, PerSequence: 0.06, PerKVToken: 0.07, AdapterSlowdown: 1.5},
		AdapterLoad: v1alpha1.Spread{Mean: 0.08, StdDev: 0.09}, AdapterActivation: v1alpha1.Spread{Mean: 0.1, StdDev: 0.11},
		LaunchOverhead: 0.12, MixedBatchOverhead: 0.13, AsyncScheduling: true,
		Limits: v1alpha1.EngineLimits{MaxSequences: 1, MaxBatchedTokens: 2, KVBlocks: 3, BlockSize: 4, GPUAdapters: 5, HostAdapters: 6},
	}
	meant = profile.Profile{
		Name: "8B", Source: "measured", FrontendOverhead: 0.005,
		Prefill:     profile.Prefill{Floor: 0.01, Base: 0.02, PerToken: 0.03, PerTokenSquared: 0.04, MaxMeasuredTokens: 8192},
		Decode:      profile.Decode{Base: 0.05, PerSequence: 0.06, PerKVToken: 0.07, AdapterSlowdown: 1.5},
		AdapterLoad: profile.Spread{Mean: 0.08, StdDev: 0.09}, AdapterActivation: profile.Spread{Mean: 0.1, StdDev: 0.11},
		LaunchOverhead: 0.12, MixedBatchOverhead: 0.13, AsyncScheduling: true,
		Limits: profile.Limits{MaxSequences: 1, MaxBatchedTokens: 2, KVBlocks: 3, BlockSize: 4, GPUAdapters: 5, HostAdapters: 6},
	}
)

func profiled(is v1alpha1.PoolProfile) func(*v1alpha1.PoolSettingsSpec) {
	return func(s *v1alpha1.PoolSettingsSpec) { s.Profile = &is }
}

// withAccelerators returns profiles for accelerators; pinned is the same with learning off.
func withAccelerators(all ...v1alpha1.AcceleratorProfile) v1alpha1.PoolProfile {
	return v1alpha1.PoolProfile{AcceleratorLabel: "gpu", Accelerators: all}
}

func pinned(p v1alpha1.PoolProfile) v1alpha1.PoolProfile {
	p.Pinned = true
	return p
}

func TestErrorsOfProfiles(t *testing.T) {
	bad := written
	bad.Decode.Base = -1
	for _, c := range []struct {
		of             v1alpha1.PoolProfile
		folder, server string // expected errors, empty if accepted
	}{
		{of: v1alpha1.PoolProfile{Inline: &written, AcceleratorLabel: "nvidia.com/gpu.product"}},
		{of: v1alpha1.PoolProfile{Hardware: "2xl4", Parameters: "8b"}},
		{v1alpha1.PoolProfile{}, `spec.profile: Invalid value: "": set one of inline, file, and hardware with parameters`, "the same"},
		{
			v1alpha1.PoolProfile{Inline: &written, Hardware: "L4", Parameters: "8B"},
			`spec.profile: Invalid value: "": set one of inline, file, and hardware with parameters`, "the same",
		},
		{
			v1alpha1.PoolProfile{Inline: &written, File: "p.yaml"},
			`spec.profile: Invalid value: "": set one of inline, file, and hardware with parameters`, "any",
		},
		{
			v1alpha1.PoolProfile{Hardware: "L4"},
			`spec.profile: Invalid value: "": set both hardware and parameters, such as 4 x A100-80GB and 70B`, "the same",
		},
		{
			v1alpha1.PoolProfile{Inline: &bad},
			"spec.profile.inline.decode.base: Invalid value: -1: a time in seconds is finite and not negative", "the same",
		},
		{
			v1alpha1.PoolProfile{Hardware: "L4", Parameters: "8B", AcceleratorLabel: "a/b/c"},
			`spec.profile.acceleratorLabel: Invalid value: "a/b/c": no label can have this name: write one such as example.com/gpu`,
			"the same",
		},
		{of: v1alpha1.PoolProfile{Hardware: "L4", Parameters: "8B", Pinned: true}},
		{of: v1alpha1.PoolProfile{
			AcceleratorLabel: "gpu",
			Accelerators: []v1alpha1.AcceleratorProfile{
				{Accelerator: "A100", Inline: &written, Pinned: true},
				{Accelerator: "L4", Hardware: "L4", Parameters: "8B"},
			},
		}},
		{
			v1alpha1.PoolProfile{Inline: &written, Accelerators: []v1alpha1.AcceleratorProfile{{Accelerator: "a", Inline: &written}}},
			"spec.profile.acceleratorLabel: Required value: name the label that says which accelerator an endpoint has", "the same",
		},
		{
			withAccelerators(v1alpha1.AcceleratorProfile{Accelerator: "a"}),
			`spec.profile.accelerators[0]: Invalid value: "": set one of inline, file, and hardware with parameters`, "the same",
		},
		{
			withAccelerators(v1alpha1.AcceleratorProfile{Inline: &written}),
			"spec.profile.accelerators[0].accelerator: Required value: set the label's value, such as A100", "the same",
		},
		{
			withAccelerators(v1alpha1.AcceleratorProfile{Accelerator: "a", Inline: &bad}),
			"spec.profile.accelerators[0].inline.decode.base: Invalid value: -1", "the same",
		},
		{
			withAccelerators(v1alpha1.AcceleratorProfile{Accelerator: "a", Inline: &written},
				v1alpha1.AcceleratorProfile{Accelerator: "a", Inline: &written}),
			`spec.profile.accelerators[1].accelerator: Duplicate value: "a"`, "the same",
		},
		{
			withAccelerators(v1alpha1.AcceleratorProfile{Accelerator: strings.Repeat("a", 64), Inline: &written}),
			"spec.profile.accelerators[0].accelerator: Too long", "the same",
		},
		{
			withAccelerators(slices.Repeat([]v1alpha1.AcceleratorProfile{{Accelerator: "a", Inline: &written}}, 33)...),
			"spec.profile.accelerators: Too many: 33: must have at most 32 items", "the same",
		},
		{
			withAccelerators(v1alpha1.AcceleratorProfile{Accelerator: "a", Hardware: "B300", Parameters: "8B"}),
			`spec.profile.accelerators[0].hardware: Invalid value: "B300": no GPU in the table is called "B300"`, "",
		},
		{
			withAccelerators(v1alpha1.AcceleratorProfile{Accelerator: "a", File: "p.yaml"}), "",
			`spec.profile.accelerators[0].file: Invalid value: "p.yaml": file works only for objects in a folder: put its content under inline`,
		},
		{
			pinned(withAccelerators(v1alpha1.AcceleratorProfile{Accelerator: "a", Inline: &written})),
			`spec.profile: Invalid value: "": pinned needs a profile: set inline, file, or hardware with parameters`, "the same",
		},
		{
			v1alpha1.PoolProfile{File: "p.yaml"},
			"",
			`spec.profile.file: Invalid value: "p.yaml": file works only for objects in a folder: put its content under inline`,
		},
		{
			v1alpha1.PoolProfile{File: "../p.yaml"},
			`spec.profile.file: Invalid value: "../p.yaml": want the name of a file in this folder, such as profile.yaml`, "any",
		},
		{
			v1alpha1.PoolProfile{File: "a/p.yaml"},
			`spec.profile.file: Invalid value: "a/p.yaml": want the name of a file in this folder, such as profile.yaml`, "any",
		},
		{
			v1alpha1.PoolProfile{File: ".p.yaml"},
			`spec.profile.file: Invalid value: ".p.yaml": want the name of a file in this folder, such as profile.yaml`, "any",
		},
		{
			v1alpha1.PoolProfile{File: "p.csv"},
			`spec.profile.file: Invalid value: "p.csv": want the name of a file in this folder, such as profile.yaml`, "any",
		},
		{
			v1alpha1.PoolProfile{Hardware: "L4", Parameters: "many"},
			`spec.profile.parameters: Invalid value: "many": set the model's number of parameters, such as 8B, 70B or 500M`, "the same",
		},
		{
			v1alpha1.PoolProfile{Hardware: "B300", Parameters: "8B"},
			`spec.profile.hardware: Invalid value: "B300": no GPU in the table is called "B300"; known are `, "",
		},
		{
			v1alpha1.PoolProfile{Hardware: "L4", Parameters: "70B"},
			`spec.profile.hardware: Invalid value: "L4": 70B of parameters do not fit on 1 x L4: their weights take 140 GB`, "",
		},
	} {
		s := someSettings("s", "base", profiled(c.of))
		folder := objects.CheckFolderSettings(&s).ToAggregate()
		if (folder == nil) != (c.folder == "") || folder != nil && !strings.Contains(folder.Error(), c.folder) {
			t.Errorf("a folder says %v, want %s", folder, c.folder)
		}
		server := objects.CheckServerSettings(&s).ToAggregate()
		want := c.server
		switch want {
		case "the same":
			want = c.folder
		case "any":
			continue
		}
		if (server == nil) != (want == "") || server != nil && !strings.Contains(server.Error(), want) {
			t.Errorf("an API server's are at fault: %v, want %s", server, want)
		}
	}
}

// A pool has the profile in its settings, in either form, and none if the settings have none or
// name one that does not exist.
func TestProfileOfAPool(t *testing.T) {
	files := map[string]profile.Profile{"p.yaml": {Name: "of a file"}}
	for _, c := range []struct {
		of            func(*v1alpha1.PoolSettingsSpec)
		name, problem string
	}{
		{of: nil},
		{of: profiled(v1alpha1.PoolProfile{Inline: &written}), name: "8B"},
		{of: profiled(v1alpha1.PoolProfile{File: "p.yaml"}), name: "of a file"},
		{of: profiled(v1alpha1.PoolProfile{Hardware: "4xh100", Parameters: "70B"}), name: "70B of parameters on 4 x H100-80GB"},
		{
			of:      profiled(v1alpha1.PoolProfile{File: "q.yaml"}),
			problem: "PoolSettings default/s: spec.profile: file: there is no q.yaml with a profile in the folder of objects: the pool has no profile",
		},
		{
			of:      profiled(v1alpha1.PoolProfile{Hardware: "L4", Parameters: "70B"}),
			problem: "PoolSettings default/s: spec.profile: 70B of parameters do not fit on 1 x L4: their weights take 140 GB, and 22 GB are for use; write more GPUs: the pool has no profile",
		},
	} {
		labels := map[string]string{"app": "x"}
		w := objects.Build(objects.Set{
			Pools: []pool.InferencePool{aPool("base", labels, 8000)}, Settings: []v1alpha1.PoolSettings{someSettings("s", "base", c.of)},
			Profiles: files,
		})
		is := w.Pools[objects.Name{Namespace: "default", Name: "base"}].Profile
		if (is == nil) != (c.name == "") || is != nil && is.Name != c.name {
			t.Errorf("the profile is %+v, want %q", is, c.name)
		}
		if is != nil && is.Name == "8B" && !reflect.DeepEqual(*is, meant) {
			t.Errorf("what is written means %+v, want %+v", *is, meant)
		}
		if problems := strings.Join(w.Problems, "\n"); problems != c.problem {
			t.Errorf("problems are %q, want %q", problems, c.problem)
		}
	}
}

// An accelerator has its own profile; without one it has the pool's. If the profile of one
// accelerator does not exist, those of the other accelerators still apply.
func TestProfilesOfAccelerators(t *testing.T) {
	of := v1alpha1.PoolProfile{AcceleratorLabel: "gpu", Inline: &written, Pinned: true, Accelerators: []v1alpha1.AcceleratorProfile{
		{Accelerator: "A100", File: "p.yaml"},
		{Accelerator: "L4", Hardware: "L4", Parameters: "8B", Pinned: true},
		{Accelerator: "T4", File: "q.yaml"},
	}}
	build := func(of v1alpha1.PoolProfile) (*objects.Pool, []string) {
		w := objects.Build(objects.Set{
			Pools:    []pool.InferencePool{aPool("base", map[string]string{"app": "x"}, 8000)},
			Settings: []v1alpha1.PoolSettings{someSettings("s", "base", profiled(of))},
			Profiles: map[string]profile.Profile{"p.yaml": {Name: "of a file"}},
		})
		return w.Pools[objects.Name{Namespace: "default", Name: "base"}], w.Problems
	}
	p, problems := build(of)
	for class, want := range map[string]struct {
		name   string
		pinned bool
	}{
		"A100": {"of a file", false}, "L4": {"8B of parameters on 1 x L4", true}, "T4": {"8B", true}, "": {"8B", true},
		"H100": {"8B", true},
	} {
		if is := p.Said(class); is == nil || is.Name != want.name || is.Pinned != want.pinned {
			t.Errorf("of class %q it is said %+v, want %v", class, is, want)
		}
	}
	const want = "PoolSettings default/s: spec.profile.accelerators[2]: file: there is no q.yaml with a profile in the folder of objects: the accelerator has no profile of its own"
	if len(problems) != 1 || problems[0] != want {
		t.Errorf("problems are %q, want %q", problems, want)
	}
	of.Inline, of.Pinned, of.Accelerators = nil, false, of.Accelerators[:2]
	if p, problems := build(of); p.Said("") != nil || p.Profile != nil || p.Said("L4") == nil || len(problems) > 0 {
		t.Errorf("with profiles of classes alone it is said %+v of others; %v", p.Said(""), problems)
	}
}

// The setting of how many adapters an engine may have also sets its GPU's slots.
func TestSlotsOfAProfile(t *testing.T) {
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("base", map[string]string{"app": "x"}, 8000)},
		Settings: []v1alpha1.PoolSettings{someSettings("s", "base", func(s *v1alpha1.PoolSettingsSpec) {
			s.Profile, s.Placement = &v1alpha1.PoolProfile{Hardware: "L4", Parameters: "8B"},
				&v1alpha1.Placement{MaxAdapters: ptr.To[int32](3)}
		})},
	})
	if is := w.Pools[objects.Name{Namespace: "default", Name: "base"}].Profile; is == nil || is.Limits.GPUAdapters != 3 {
		t.Errorf("the profile is %+v", is)
	}
}

// An endpoint's accelerator is the value of the label that its pool's settings name.
func TestAcceleratorOfAnEndpoint(t *testing.T) {
	set := objects.Set{
		Pools: []pool.InferencePool{
			aPool("base", map[string]string{"app": "x"}, 8000),
			aPool("other", map[string]string{"app": "y"}, 8000),
		},
		Pods: []objects.Pod{
			aPod("a", "10.0.0.1", true, map[string]string{"app": "x", "gpu": "A100"}),
			aPod("b", "10.0.0.2", true, map[string]string{"app": "x"}),
			aPod("c", "10.0.0.3", true, map[string]string{"app": "y", "gpu": "L4"}),
		},
		Settings: []v1alpha1.PoolSettings{someSettings("s", "base",
			profiled(v1alpha1.PoolProfile{Inline: &written, AcceleratorLabel: "gpu"}))},
	}
	list := objects.List{}
	list.Namespace, list.Name, list.Labels = "default", "l", map[string]string{"app": "x", "gpu": "H100"}
	list.Spec.Addresses = []string{"10.0.0.4:8000"}
	set.Lists = append(set.Lists, list)
	w := objects.Build(set)
	want := map[string]string{"10.0.0.1:8000": "A100", "10.0.0.2:8000": "", "10.0.0.3:8000": "", "10.0.0.4:8000": "H100"}
	got, engines := map[string]string{}, map[string]string{}
	for _, p := range w.Pools {
		for _, e := range p.Endpoints {
			got[e.Address] = e.Class
		}
	}
	for _, e := range w.Engines {
		engines[e.Address] = e.Class
	}
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(engines, want) {
		t.Errorf("classes of endpoints are %v, of engines %v, want %v", got, engines, want)
	}
}

// The reference lists the hardware in the table.
func TestReferenceNamesTheHardware(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, fault := table.ParseHardware("none")
	_, names, _ := strings.Cut(fault.Error(), "known are ")
	last := strings.LastIndex(names, ", ")
	if want := "Known kinds are " + names[:last] + " and " + names[last+2:] +
		"."; !strings.Contains(strings.ReplaceAll(string(text), "<br />", " "), want) {
		t.Errorf("it lacks %q", want)
	}
}
