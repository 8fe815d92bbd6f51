package kube_test

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/kube"
	"github.com/headgate/headgate/test/apiserver"
)

// machine is a kind made up for this test: an engine that is not a pod but serves like one.
type machine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		IP   string `json:"ip"`
		Note string `json:"note,omitempty"`
	} `json:"spec"`
}

func (m *machine) DeepCopyObject() runtime.Object {
	is := *m
	is.ObjectMeta = *m.DeepCopy()
	return &is
}

type machineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []machine `json:"items"`
}

func (l *machineList) DeepCopyObject() runtime.Object {
	is := *l
	is.Items = slices.Clone(l.Items)
	return &is
}

// withMachines is the table with one more row, which is all that a new kind needs.
var withMachines = append(kinds.All(), kinds.Of(kinds.Row[machine, objects.Pod]{
	Resource: schema.GroupVersionResource{Group: "test.headgate.dev", Version: "v1", Resource: "machines"}, Kind: "Machine",
	List:   new(machineList),
	Strict: true,
	Folder: func(m *machine) (objects.Pod, field.ErrorList) {
		kept := objects.Pod{
			Name: objects.Name{Namespace: m.Namespace, Name: m.Name}, Labels: m.Labels, Ready: true,
			Containers: []objects.Container{{ID: m.Spec.Note}},
		}
		ip, err := netip.ParseAddr(m.Spec.IP)
		if err != nil {
			return kept, field.ErrorList{field.Invalid(field.NewPath("spec", "ip"), m.Spec.IP, "want an IP address")}
		}
		kept.IP = ip
		return kept, nil
	},
	Trim: func(m *machine) {
		kinds.TrimMeta(&m.ObjectMeta)
		m.Spec.Note = ""
	},
	In: func(s *objects.Set) *[]objects.Pod { return &s.Pods },
}))

const machineCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: machines.test.headgate.dev}
spec:
  group: test.headgate.dev
  names: {kind: Machine, plural: machines}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]`

func machineAt(name, ip string) string {
	return "apiVersion: test.headgate.dev/v1\nkind: Machine\nmetadata: {name: " + name +
		", labels: {app: llama}}\nspec:\n  note: in the cellar\n  ip: " + ip + "\n"
}

func TestNewKindFromAFolder(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "o.yaml")
	// read reads the objects once, or returns an error.
	read := func(table []kinds.Kind, text string) (set objects.Set, err error) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err = dir.New(folder, table, slog.New(slog.DiscardHandler), nil).Run(ctx, func(s objects.Set) {
			set = s
			cancel()
		})
		return set, err
	}
	set, err := read(withMachines, inferencePool("{"+base+"}")+"\n---\n"+machineAt("m", "10.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	w := objects.Build(set)
	if got := w.Addresses(); !slices.Equal(got, []string{"10.0.0.1:8000"}) ||
		w.Where("Machine", objects.Name{Namespace: "default", Name: "m"}) != "Machine default/m, "+file+":8" {
		t.Errorf("the endpoints are %v, and where they are written is %v", got, set.At)
	}
	for _, row := range []struct {
		name  string
		table []kinds.Kind
		text  string
		want  string
	}{
		{
			"not valid", withMachines, machineAt("m", "cellar"),
			`o.yaml:6: Machine default/m: spec.ip: Invalid value: "cellar": want an IP address`,
		},
		{
			"a field that it does not have", withMachines, machineAt("m", "10.0.0.1") + "  rack: 7\n",
			`o.yaml:7: Machine default/m: unknown field "spec.rack"`,
		},
		{
			"another version", withMachines, strings.Replace(machineAt("m", "10.0.0.1"), "/v1", "/v2", 1),
			"inference.networking.k8s.io/v1 InferencePool, v1 Pod and test.headgate.dev/v1 Machine",
		},
		{
			"without the row", kinds.All(), machineAt("m", "10.0.0.1"),
			`o.yaml:2: apiVersion "test.headgate.dev/v1", kind "Machine" is not an object that Headgate reads`,
		},
	} {
		if _, err := read(row.table, row.text); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %s", row.name, err, row.want)
		}
	}
}

// Its CRD appears after everything else is known, and disappears; unneeded fields are removed.
func TestNewKindFromAnAPIServer(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool("{"+base+"}") + "\n---\n" + route("{backendRefs: [{name: p}]}") + "\n" + pod("a", "10.0.0.1", "True"))
	const absent = "crd=machines.test.headgate.dev"
	for _, namespace := range []string{"", "default"} {
		var log lockedLog
		f := followKinds(t, c.Admin(), namespace, withMachines, slog.New(slog.NewTextHandler(&log, nil)))
		c.Await("all else is in force without its CRD", func() bool {
			return f.readable.Load() && f.endpoints("p") == "+10.0.0.1:8000" && f.models() == "r"
		})
		if n := log.count("level=WARN"); n != 1 || log.count(absent) != 1 {
			t.Errorf("that its CRD lacks is told by %d lines:\n%s", n, log.String())
		}

		crd := apiserver.ReadObjects(t, machineCRD)
		c.Define(crd)
		c.Apply(machineAt("m", "10.0.0.2") + "---\n" + machineAt("bad", "cellar"))
		c.Await("it is in force, and what is not valid is left out", func() bool {
			return f.endpoints("p") == "+10.0.0.1:8000 +10.0.0.2:8000" && f.refused.Load() == 1
		})
		for _, p := range f.set.Load().Pods {
			if p.Name.Name == "m" && p.Containers[0].ID != "" {
				t.Errorf("what is dropped is kept: %+v", p)
			}
		}
		c.Delete(machineCRD)
		c.Await("without its CRD it is gone", func() bool { return f.endpoints("p") == "+10.0.0.1:8000" && f.refused.Load() == 0 })
		c.Await("that is told again", func() bool { return log.count(absent) == 2 })
		if !f.readable.Load() || f.models() != "r" {
			t.Errorf("without its CRD it is told readable %v, and the models are %s", f.readable.Load(), f.models())
		}
		c.gone("machines.test.headgate.dev")
	}
}

// The CRD of any kind may be missing, for example if the CRDs are of another version. All other
// kinds still work.
func TestCRDsMayBeInstalledLater(t *testing.T) {
	c := newCluster(t)
	one := map[string]string{
		"InferencePool": inferencePool("{" + base + "}"), "LLMRoute": route("{backendRefs: [{name: p}]}"),
		"Model": model("{poolRef: {name: p}}"), "VModel": vmodel("{poolRef: {name: p}, target: m}"),
		"PoolSettings": settings("{poolRef: {name: p}}"), "EndpointList": list(`{addresses: ["10.0.0.9:1"]}`),
		"Pod": pod("a", "10.0.0.1", "True"),
	}
	for _, text := range one {
		c.Apply(text)
	}
	for _, k := range kinds.All() {
		if k.CRD() == "" {
			continue
		}
		c.Delete("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: " + k.CRD() + "}")
		c.gone(k.CRD())
		want := map[string]int{k.Kind: 0}
		for kind := range one {
			if kind != k.Kind {
				want[kind] = 1
			}
		}
		is := func(f *followed) bool { return maps.Equal(f.world.Load().Objects, want) }
		f := follow(t, reader(c), "")
		c.Await("without "+k.CRD()+" the others are in force", func() bool { return f.readable.Load() && is(f) })
		set, err := kube.Read(t.Context(), reader(c), "", kinds.All())
		if w := objects.Build(set); err != nil || !slices.Equal(set.Absent, []string{k.Absent()}) ||
			!slices.Contains(w.Problems, k.Absent()) {
			t.Errorf("read once without %s, there lack %q, %v", k.CRD(), set.Absent, err)
		}
		c.CRDs()
		c.Apply(one[k.Kind])
		want[k.Kind] = 1
		c.Await(k.CRD()+" comes, and its objects are in force", func() bool { return is(f) })
		if !f.readable.Load() {
			t.Errorf("when %s has come it is told that not all can be read", k.CRD())
		}
	}
}

// gone waits until a CRD is gone.
func (c cluster) gone(name string) {
	c.Helper()
	crds := c.At(apiserver.ReadObjects(c, machineCRD)[0])
	c.Await("CRD "+name+" is gone", func() bool {
		_, err := crds.Get(c.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}
