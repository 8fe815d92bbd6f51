package objects_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// team is the objects of a namespace: a pool, its settings and the endpoints that it selects.
type team struct {
	namespace, pool string
	age             time.Duration // age of the pool; a larger age is an older pool
	pods            string        // IP addresses with port 8000; a - before one means not ready
	lists           string        // addresses; the name resolves to 10.0.9.9
	change          func(l *v1alpha1.EndpointListSpec, s *v1alpha1.PoolSettingsSpec)
}

// together returns the objects of several teams.
func together(teams ...team) objects.Set {
	s := objects.Set{Hosts: map[string][]netip.Addr{"gpu.test": {netip.MustParseAddr("10.0.9.9")}}}
	for _, t := range teams {
		meta := metav1.ObjectMeta{Namespace: t.namespace, Name: t.pool, Labels: map[string]string{"app": t.pool}}
		p := pool.InferencePool{ObjectMeta: meta}
		p.CreationTimestamp = metav1.NewTime(time.Unix(1e9, 0).Add(-t.age))
		p.Spec.Selector.MatchLabels = meta.Labels
		p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
		list := v1alpha1.EndpointList{ObjectMeta: meta, Spec: v1alpha1.EndpointListSpec{Addresses: strings.Fields(t.lists)}}
		settings := v1alpha1.PoolSettings{ObjectMeta: meta, Spec: v1alpha1.PoolSettingsSpec{PoolRef: v1alpha1.PoolReference{Name: t.pool}}}
		if t.change != nil {
			t.change(&list.Spec, &settings.Spec)
		}
		s.Pools, s.Settings = append(s.Pools, p), append(s.Settings, settings)
		if t.lists != "" {
			s.Lists = append(s.Lists, objects.List{EndpointList: list})
		}
		for ip := range strings.FieldsSeq(t.pods) {
			ip, starting := strings.CutPrefix(ip, "-")
			s.Pods = append(s.Pods, objects.Pod{
				Name: objects.Name{Namespace: t.namespace, Name: "pod-" + ip}, Labels: meta.Labels, IP: netip.MustParseAddr(ip),
				Ready: !starting,
			})
		}
	}
	return s
}

// adapters sets an engine kind, and a number of adapters that identifies the settings.
func adapters(n int32, kind string) func(*v1alpha1.EndpointListSpec, *v1alpha1.PoolSettingsSpec) {
	return func(l *v1alpha1.EndpointListSpec, s *v1alpha1.PoolSettingsSpec) {
		l.Engine, s.Placement = kind, &v1alpha1.Placement{MaxAdapters: &n}
	}
}

// runtimes sets a management port, which makes an engine a model runtime.
func runtimes(port int) func(*v1alpha1.EndpointListSpec, *v1alpha1.PoolSettingsSpec) {
	return func(_ *v1alpha1.EndpointListSpec, s *v1alpha1.PoolSettingsSpec) {
		s.Placement = &v1alpha1.Placement{Management: fmt.Sprint("port:", port)}
	}
}

// torch is managed for TorchServes.
func torch(list, settings string) func(*v1alpha1.EndpointListSpec, *v1alpha1.PoolSettingsSpec) {
	return managed("torchserve", list, settings)
}

// managed sets the management address of engines in the list, the settings, both or neither.
func managed(kind, list, settings string) func(*v1alpha1.EndpointListSpec, *v1alpha1.PoolSettingsSpec) {
	return func(l *v1alpha1.EndpointListSpec, s *v1alpha1.PoolSettingsSpec) {
		l.Engine, l.Management, s.Placement = kind, list, &v1alpha1.Placement{Management: settings}
	}
}

// token sets the Secret of the engines' token.
func token(secret, key string) func(*v1alpha1.EndpointListSpec, *v1alpha1.PoolSettingsSpec) {
	return func(_ *v1alpha1.EndpointListSpec, s *v1alpha1.PoolSettingsSpec) {
		s.EngineToken = &v1alpha1.EngineToken{SecretRef: v1alpha1.SecretKeyReference{Name: secret, Key: key}}
	}
}

// An attacker who can write pools, lists and settings in one namespace gets that namespace's token
// sent to the addresses it owns, and nothing of another namespace.
func TestEngineGetsOnlyItsOwnersToken(t *testing.T) {
	for _, c := range []struct {
		name  string
		teams []team
		want  []string // per engine: address, token reference, and the pools whose models it loads
	}{
		{"without settings there is none", []team{{namespace: "a", pool: "p", pods: "10.0.0.7"}}, []string{"10.0.0.7:8000  [a/p]"}},
		{
			"the key has a default",
			[]team{{namespace: "a", pool: "p", pods: "10.0.0.7", change: token("s", "")}},
			[]string{"10.0.0.7:8000 a/s/token [a/p]"},
		},
		{
			"each team has its own",
			[]team{
				{namespace: "a", pool: "p", pods: "10.0.0.7", change: token("s", "k")},
				{namespace: "b", pool: "p", lists: "10.0.0.8:80", change: token("s", "k")},
			},
			[]string{"10.0.0.7:8000 a/s/k [a/p]", "10.0.0.8:80 b/s/k [b/p]"},
		},
		{
			"an attacker who lists the address of a pod gets it no other token, and has nothing loaded there",
			[]team{
				{namespace: "victim", pool: "p", pods: "10.0.0.7", change: token("s", "k")},
				{namespace: "attacker", pool: "p", age: 9, lists: "10.0.0.7:8000", change: token("s", "k")},
			},
			[]string{"10.0.0.7:8000 victim/s/k [victim/p]"},
		},
		{
			"nor one where its owner has none",
			[]team{
				{namespace: "victim", pool: "p", pods: "10.0.0.7"},
				{namespace: "attacker", pool: "p", age: 9, lists: "10.0.0.7:8000", change: token("s", "k")},
			},
			[]string{"10.0.0.7:8000  [victim/p attacker/p]"},
		},
		{
			"an attacker who lists the address of an older pool's list neither",
			[]team{
				{namespace: "victim", pool: "p", age: 9, lists: "10.0.0.7:80", change: token("s", "k")},
				{namespace: "attacker", pool: "a", age: 8, lists: "10.0.0.7:80", change: token("s", "k")},
			},
			[]string{"10.0.0.7:80 victim/s/k [victim/p]"},
		},
		{
			"one who listed it before his victim did has it reached with his own",
			[]team{
				{namespace: "victim", pool: "p", age: 8, lists: "10.0.0.7:80", change: token("s", "k")},
				{namespace: "attacker", pool: "a", age: 9, lists: "10.0.0.7:80", change: token("t", "k")},
			},
			[]string{"10.0.0.7:80 attacker/t/k [attacker/a]"},
		},
		{
			"one whose own server is in his pool gets his own",
			[]team{
				{namespace: "victim", pool: "p", age: 9, pods: "10.0.0.7", change: token("s", "k")},
				{namespace: "attacker", pool: "a", pods: "10.0.0.66", lists: "10.0.0.66:80", change: token("t", "k")},
			},
			[]string{
				"10.0.0.66:80 attacker/t/k [attacker/a]", "10.0.0.66:8000 attacker/t/k [attacker/a]",
				"10.0.0.7:8000 victim/s/k [victim/p]",
			},
		},
		{
			"one whose list names another port of a runtime's pod has it managed with no token",
			[]team{
				{
					namespace: "victim", pool: "p", pods: "10.0.0.7",
					change: func(l *v1alpha1.EndpointListSpec, s *v1alpha1.PoolSettingsSpec) {
						runtimes(8085)(l, s)
						token("s", "k")(l, s)
					},
				},
				{
					namespace: "attacker", pool: "a", age: 9, lists: "10.0.0.7:1 10.0.0.7:8085",
					change: func(l *v1alpha1.EndpointListSpec, s *v1alpha1.PoolSettingsSpec) {
						runtimes(8085)(l, s)
						token("t", "k")(l, s)
					},
				},
			},
			[]string{
				"10.0.0.7:1 attacker/t/k [attacker/a]", "10.0.0.7:8000 victim/s/k [victim/p] managed at 10.0.0.7:8085",
				"10.0.0.7:8085  [attacker/a]",
			},
		},
		{
			"pools of one namespace may share, and the first that names a token says it",
			[]team{
				{namespace: "a", pool: "p", age: 3, lists: "10.0.0.7:80"},
				{namespace: "a", pool: "q", age: 2, lists: "10.0.0.7:80", change: token("s", "k")},
				{namespace: "a", pool: "r", age: 1, lists: "10.0.0.7:80", change: token("t", "k")},
			},
			[]string{"10.0.0.7:80 a/s/k [a/p a/q a/r]"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 { // in any order
				slices.Reverse(c.teams)
				var got []string
				for _, e := range objects.Build(together(c.teams...)).Engines {
					words := fmt.Sprintf("%s %s %v", e.Address, e.Token, e.Pools)
					if e.Management != "" {
						words += " managed at " + e.Management
					}
					got = append(got, words)
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("the engines are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
				}
			}
		})
	}
}

func TestSecretsAreThoseThatSettingsName(t *testing.T) {
	set := together(
		team{namespace: "b", pool: "p", change: token("s", "")}, team{namespace: "a", pool: "q", change: token("s", "token")},
		team{namespace: "a", pool: "p", change: token("s", "")},
		team{namespace: "a", pool: "r", change: token("s", "k")}, team{namespace: "a", pool: "none"},
	)
	lost := set.Settings[0]
	lost.Namespace = "c" // a namespace without such a pool
	set.Settings = append(set.Settings, lost)
	name := func(namespace, name string) objects.Name { return objects.Name{Namespace: namespace, Name: name} }
	want := []objects.Secret{
		{Name: name("a", "s"), Key: "k", Settings: name("a", "r")},
		{Name: name("a", "s"), Key: "token", Settings: name("a", "p")},
		{Name: name("b", "s"), Key: "token", Settings: name("b", "p")},
	}
	if got := objects.Build(set).Secrets(); !slices.Equal(got, want) {
		t.Errorf("the Secrets are %+v", got)
	}
}

// The owner's settings decide how an engine is called and managed. Pools of other namespaces that
// list its address change nothing.
func TestOwnersSettingsDecide(t *testing.T) {
	for _, c := range []struct {
		name  string
		teams []team
		want  []string // per engine: address, host, kind, management address, maximum number of adapters, pools
	}{
		{
			"the older pool owns an address that two list",
			[]team{
				{namespace: "a", pool: "p", age: 1, lists: "10.0.0.7:80", change: adapters(1, "vllm")},
				{namespace: "b", pool: "p", age: 2, lists: "10.0.0.7:80", change: adapters(2, "sglang")},
			},
			[]string{"10.0.0.7:80 sglang 2 [b/p a/p]"},
		},
		{
			"of the same age the first by name",
			[]team{
				{namespace: "b", pool: "p", lists: "10.0.0.7:80", change: adapters(2, "sglang")},
				{namespace: "a", pool: "p", lists: "10.0.0.7:80", change: adapters(1, "vllm")},
			},
			[]string{"10.0.0.7:80 vllm 1 [a/p b/p]"},
		},
		{
			"what the owner leaves out, nobody of another namespace says",
			[]team{
				{namespace: "a", pool: "p", age: 2, lists: "10.0.0.7:80"},
				{namespace: "b", pool: "p", age: 1, lists: "10.0.0.7:80", change: adapters(2, "sglang")},
			},
			[]string{"10.0.0.7:80 0 [a/p b/p]"},
		},
		{
			"but a younger pool of its own namespace",
			[]team{
				{namespace: "a", pool: "p", age: 2, lists: "10.0.9.9:80"},
				{namespace: "a", pool: "q", age: 1, lists: "gpu.test:80", change: adapters(2, "sglang")},
				{namespace: "a", pool: "r", lists: "10.0.9.9:80", change: adapters(3, "vllm")},
			},
			[]string{"10.0.9.9:80 gpu.test sglang 2 [a/p a/q a/r]"},
		},
		{
			"an attacker's old pool owns no address of a pod that it lists",
			[]team{
				{namespace: "attacker", pool: "p", age: 9, lists: "10.0.0.7:8000", change: adapters(9, "modelruntime")},
				{namespace: "victim", pool: "p", pods: "10.0.0.7", change: adapters(1, "")},
			},
			[]string{"10.0.0.7:8000 1 [victim/p attacker/p]"},
		},
		{
			"nor of a pod that is not ready",
			[]team{
				{namespace: "attacker", pool: "p", age: 9, lists: "10.0.0.7:8000", change: adapters(9, "modelruntime")},
				{namespace: "victim", pool: "p", pods: "-10.0.0.7", change: adapters(1, "")},
			},
			[]string{"10.0.0.7:8000 1 [victim/p attacker/p]"},
		},
		{
			"an address that a pod left is its successor's",
			[]team{
				{namespace: "a", pool: "p", age: 9, pods: "-10.0.0.7", change: adapters(9, "")},
				{namespace: "b", pool: "p", pods: "10.0.0.7", change: adapters(1, "")},
			},
			[]string{"10.0.0.7:8000 1 [b/p a/p]"},
		},
		{
			"an attacker's own address is his",
			[]team{
				{namespace: "attacker", pool: "p", lists: "10.0.0.66:80", change: adapters(9, "sglang")},
				{namespace: "victim", pool: "p", age: 9, pods: "10.0.0.7", change: adapters(1, "")},
			},
			[]string{"10.0.0.66:80 sglang 9 [attacker/p]", "10.0.0.7:8000 1 [victim/p]"},
		},
		{
			"a runtime that an attacker lists at another port is not managed by him",
			[]team{
				{namespace: "attacker", pool: "p", age: 9, lists: "10.0.0.7:1", change: runtimes(8085)},
				{namespace: "victim", pool: "p", pods: "10.0.0.7", change: runtimes(8085)},
			},
			[]string{"10.0.0.7:1 modelruntime 0 [attacker/p]", "10.0.0.7:8000 modelruntime managed at 10.0.0.7:8085 0 [victim/p]"},
		},
		{
			"nor an engine at the port where it serves",
			[]team{
				{namespace: "attacker", pool: "p", age: 9, lists: "10.0.0.7:1", change: runtimes(8000)},
				{namespace: "victim", pool: "p", pods: "10.0.0.7", change: adapters(1, "")},
			},
			[]string{"10.0.0.7:1 modelruntime 0 [attacker/p]", "10.0.0.7:8000 1 [victim/p]"},
		},
		{
			"nor looked at as he says where it is managed",
			[]team{
				{namespace: "attacker", pool: "p", age: 9, lists: "10.0.0.7:8085", change: adapters(9, "triton")},
				{namespace: "victim", pool: "p", pods: "10.0.0.7", change: runtimes(8085)},
			},
			[]string{"10.0.0.7:8000 modelruntime managed at 10.0.0.7:8085 0 [victim/p]", "10.0.0.7:8085 0 [attacker/p]"},
		},
		{
			"one that an older pool lists is the older's, managed or not",
			[]team{
				{namespace: "a", pool: "p", age: 9, lists: "10.0.0.7:8085"},
				{namespace: "b", pool: "p", lists: "10.0.0.7:80", change: runtimes(8085)},
			},
			[]string{"10.0.0.7:80 modelruntime 0 [b/p]", "10.0.0.7:8085 0 [a/p]"},
		},
		{
			"a TorchServe is managed where its list, its pool or its own default says, and stays one",
			[]team{
				{namespace: "a", pool: "p", lists: "10.0.0.7:80", change: torch("", "port:91")},
				{namespace: "b", pool: "p", lists: "10.0.0.8:80", change: torch("port:92", "")},
				{namespace: "c", pool: "p", lists: "10.0.0.9:80", change: torch("", "")},
			},
			[]string{
				"10.0.0.7:80 torchserve managed at 10.0.0.7:91 0 [a/p]", "10.0.0.8:80 torchserve managed at 10.0.0.8:92 0 [b/p]",
				"10.0.0.9:80 torchserve managed at 10.0.0.9:8081 0 [c/p]",
			},
		},
		{
			"an engine for adapters has an agent where its list or its pool says, and none otherwise",
			[]team{
				{namespace: "a", pool: "p", lists: "10.0.0.7:80", change: managed("vllm", "", "port:8086")},
				{namespace: "b", pool: "p", lists: "10.0.0.8:80", change: managed("sglang", "port:8087", "port:8086")},
				{namespace: "c", pool: "p", lists: "10.0.0.9:80", change: managed("vllm", "", "")},
				{namespace: "d", pool: "p", lists: "10.0.0.10:80", change: managed("tgi", "", "port:8086")},
			},
			[]string{
				"10.0.0.10:80 tgi 0 [d/p]", "10.0.0.7:80 vllm managed at 10.0.0.7:8086 0 [a/p]",
				"10.0.0.8:80 sglang managed at 10.0.0.8:8087 0 [b/p]", "10.0.0.9:80 vllm 0 [c/p]",
			},
		},
		{
			"one that an attacker lists at another port is not managed by him",
			[]team{
				{namespace: "attacker", pool: "p", age: 9, lists: "10.0.0.7:1", change: torch("", "")},
				{namespace: "victim", pool: "p", pods: "10.0.0.7", change: runtimes(8081)},
			},
			[]string{"10.0.0.7:1 torchserve 0 [attacker/p]", "10.0.0.7:8000 modelruntime managed at 10.0.0.7:8081 0 [victim/p]"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 4 { // in any order
				c.teams = append(c.teams[1:], c.teams[0])
				var got []string
				for _, e := range objects.Build(together(c.teams...)).Engines {
					words := []string{e.Address}
					for _, w := range []string{e.Host, string(e.Kind)} {
						if w != "" {
							words = append(words, w)
						}
					}
					if e.Management != "" {
						words = append(words, "managed at "+e.Management)
					}
					got = append(got, strings.Join(words, " ")+fmt.Sprintf(" %d %v", e.MaxAdapters, e.Pools))
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("the engines are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
				}
			}
		})
	}
}

// The owner's settings say how many adapters fit into host memory, whoever else lists the address.
func TestHostMemoryIsTheOwnersSetting(t *testing.T) {
	holds := func(n int32) func(*v1alpha1.EndpointListSpec, *v1alpha1.PoolSettingsSpec) {
		return func(_ *v1alpha1.EndpointListSpec, s *v1alpha1.PoolSettingsSpec) {
			s.Placement = &v1alpha1.Placement{HostAdapters: &n}
		}
	}
	w := objects.Build(together(
		team{namespace: "a", pool: "young", age: time.Hour, lists: "10.0.0.7:80", change: holds(2)},
		team{namespace: "a", pool: "old", age: 2 * time.Hour, lists: "10.0.0.7:80", change: holds(3)},
	))
	if e := w.Engines[0]; len(w.Engines) != 1 || e.HostAdapters != 3 || e.MaxAdapters != 0 {
		t.Errorf("the engines are %+v", w.Engines)
	}
}

// The owner's settings say how many models fit into an engine with a model repository. What the
// oldest pool leaves out, the next pool of the same namespace sets, and no other.
func TestRoomIsTheOwnersSetting(t *testing.T) {
	room := func(capacity string, most int32, size string) func(*v1alpha1.EndpointListSpec, *v1alpha1.PoolSettingsSpec) {
		return func(l *v1alpha1.EndpointListSpec, s *v1alpha1.PoolSettingsSpec) {
			l.Engine, s.Placement = "triton", &v1alpha1.Placement{}
			if capacity != "" {
				s.Placement.Capacity = new(resource.MustParse(capacity))
			}
			if most > 0 {
				s.Placement.MaxModels = &most
			}
			if size != "" {
				s.Placement.DefaultSize = new(resource.MustParse(size))
			}
		}
	}
	w := objects.Build(together(
		team{namespace: "a", pool: "young", age: time.Hour, lists: "10.0.0.7:80", change: room("8Gi", 7, "2M")},
		team{namespace: "a", pool: "old", age: 2 * time.Hour, lists: "10.0.0.7:80", change: room("4Gi", 0, "")},
		team{namespace: "b", pool: "other", age: time.Minute, lists: "10.0.0.7:80", change: room("", 9, "9M")},
	))
	if e := w.Engines[0]; len(w.Engines) != 1 || e.Room != (objects.Room{Bytes: 4 << 30, DefaultBytes: 2_000_000, Models: 7}) {
		t.Errorf("the engines are %+v", w.Engines)
	}
}

// A model's size is that of its Model, otherwise 1.25 times the size of its files if its key has
// one, otherwise unknown. A wrong factor fails, and so does a key mistaken for one without a size.
func TestSizeOfAModel(t *testing.T) {
	for _, c := range []struct {
		size int64
		key  string
		want int64
	}{
		{0, `{"disk_size_bytes":4000000,"model_type":"sklearn"}`, 5_000_000},
		{0, `{"model_type": {"name": "sklearn"}, "disk_size_bytes": 3}`, 3},
		{7, `{"disk_size_bytes":4000000}`, 7},
		{0, ``, 0},
		{0, `lora`, 0},
		{0, `{}`, 0},
		{0, `{"disk_size_bytes":"4000000"}`, 0},
		{0, `{"disk_size_bytes":0}`, 0},
		{0, `{"disk_size_bytes":-4}`, 0},
		{0, `{"disk_size_bytes":1e300}`, 0},
		{0, `{"disk_size_bytes":4000000`, 0},
		{0, `[{"disk_size_bytes":4}]`, 0},
	} {
		if got := (objects.Entry{Size: c.size, Info: c.key}).Complete(nil).Size; got != c.want {
			t.Errorf("of size %d and key %s: %d, want %d", c.size, c.key, got, c.want)
		}
	}
}

// Addresses on the command line take precedence over those listed in a cluster.
func TestCommandLineOwnsItsAddresses(t *testing.T) {
	w := objects.Build(objects.Endpoints([]string{"10.0.0.7:80"}).Join(together(team{
		namespace: "attacker", pool: "a", age: time.Hour,
		lists: "10.0.0.7:80", change: token("s", "k"),
	})))
	if e := w.Engines[0]; len(w.Engines) != 1 || e.Token != "" || e.Pod != objects.EndpointsPool {
		t.Errorf("the engines are %+v", w.Engines)
	}
}

// An address listed by pools of two namespaces is reported as a problem.
func TestAddressInTwoNamespacesIsAProblem(t *testing.T) {
	w := objects.Build(together(
		team{namespace: "attacker", pool: "p", age: 9, lists: "10.0.0.7:8000 10.0.0.7:1", change: runtimes(8000)},
		team{namespace: "victim", pool: "p", pods: "10.0.0.7"},
	))
	want := []string{
		"endpoint 10.0.0.7:8000 of InferencePool attacker/p belongs to InferencePool victim/p, whose settings configure its connection: each pool counts all of its load",
		"control does not manage endpoint 10.0.0.7:1 of InferencePool attacker/p: its management address 10.0.0.7:8000 belongs to InferencePool victim/p",
	}
	if !slices.Equal(w.Problems, want) {
		t.Errorf("the problems are %q", w.Problems)
	}
	w = objects.Build(together(
		team{namespace: "attacker", pool: "p", lists: "10.0.0.7:8000"},
		team{namespace: "victim", pool: "p", pods: "10.0.0.7", change: token("s", "k")},
	))
	want = []string{
		want[0],
		"endpoint 10.0.0.7:8000: control loads no model of InferencePool attacker/p there, because the token belongs to InferencePool victim/p",
	}
	if !slices.Equal(w.Problems, want) {
		t.Errorf("with a token the problems are %q", w.Problems)
	}
}
