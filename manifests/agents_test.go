package manifests

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// flag returns the value of a flag in the arguments of a container; empty without the flag.
func flag(c corev1.Container, name string) string {
	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return value
		}
	}
	return ""
}

// mounts returns the name of the volume that a container has at a path, and whether it may write
// there.
func mounts(c corev1.Container, path string) (volume string, writes bool) {
	for _, m := range c.VolumeMounts {
		if m.MountPath == path {
			return m.Name, !m.ReadOnly
		}
	}
	return "", false
}

// templates returns the pods of the objects of a folder, including those of KServe's servers.
func templates(t *testing.T, objects []*unstructured.Unstructured) (all []*corev1.PodSpec) {
	t.Helper()
	for _, o := range objects {
		if s := spec(t, o); s != nil {
			all = append(all, s)
			continue
		}
		if o.GetKind() != "LLMInferenceService" {
			continue
		}
		template, _, _ := unstructured.NestedMap(o.Object, "spec", "template")
		s := new(corev1.PodSpec)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// An agent serves control at the port that its pool names, and writes adapters where its engine
// reads them. Its other containers read its files only.
func TestAgentsServeTheirPools(t *testing.T) {
	seen := 0
	for folder, objects := range built(t) {
		var management []string
		for _, o := range objects {
			if port, ok, _ := unstructured.NestedString(o.Object, "spec", "placement", "management"); ok {
				management = append(management, strings.TrimPrefix(port, "port"))
				if source, _, _ := unstructured.NestedString(o.Object, "spec", "placement", "source"); o.GetKind() == "PoolSettings" &&
					strings.HasPrefix(source, "/") {
					t.Errorf("%s: the source %s is a path, which agents do not fetch", folder, source)
				}
			}
		}
		for _, s := range templates(t, objects) {
			at := slices.IndexFunc(s.Containers, func(c corev1.Container) bool { return c.Name == "agent" })
			if at < 0 {
				continue
			}
			seen++
			agent := s.Containers[at]
			port := flag(agent, "management")
			serves := slices.ContainsFunc(agent.Ports, func(p corev1.ContainerPort) bool {
				return port == ":"+strconv.Itoa(int(p.ContainerPort))
			})
			if !serves || !slices.Contains(management, port) {
				t.Errorf("%s: the agent serves control at %q, its ports are %v and the pools have %v", folder, port, agent.Ports, management)
			}
			models := flag(agent, "models-dir")
			volume, writes := mounts(agent, models)
			if volume == "" || !writes {
				t.Errorf("%s: the agent cannot write models to %q", folder, models)
			}
			if secrets, _ := mounts(agent, flag(agent, "storage-config")); secrets == "" {
				t.Errorf("%s: the agent has no %q", folder, flag(agent, "storage-config"))
			}
			engine := s.Containers[0]
			if own, writes := mounts(engine, models); own != volume || writes {
				t.Errorf("%s: %s has the volume %q at %s, may write there: %v; the agent has %q", folder, engine.Name, own, models, writes, volume)
			}
			if security := agent.SecurityContext; security == nil || security.ReadOnlyRootFilesystem == nil ||
				!*security.ReadOnlyRootFilesystem || agent.Resources.Limits.Memory().IsZero() || agent.ReadinessProbe == nil {
				t.Errorf("%s: the agent is not contained: %+v", folder, agent)
			}
		}
	}
	if seen < 4 {
		t.Errorf("%d agents were looked at", seen)
	}
}
