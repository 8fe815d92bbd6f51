package apiserver

import (
	"context"
	"fmt"
	"io"

	"github.com/headgate/headgate/test/gobuild"
)

// Version is the Kubernetes version in tools/kubernetes/go.mod.
const Version = "1.36.3"

// ldflags strip symbols and set the version as releases do.
const ldflags = "-s -w -X k8s.io/component-base/version.gitVersion=v" + Version + " -X k8s.io/client-go/pkg/version.gitVersion=v" + Version

// programs are the programs of a Kubernetes cluster, and Helm, by name.
var programs = map[string]gobuild.Program{
	"coredns":                 {Module: "coredns", Path: "github.com/coredns/coredns", Flags: ldflags, Static: true},
	"etcd":                    {Module: "kubernetes", Path: "go.etcd.io/etcd/server/v3", Flags: ldflags},
	"kube-apiserver":          {Module: "kubernetes", Path: "k8s.io/kubernetes/cmd/kube-apiserver", Flags: ldflags},
	"kube-controller-manager": {Module: "kubernetes", Path: "k8s.io/kubernetes/cmd/kube-controller-manager", Flags: ldflags},
	"kube-proxy":              {Module: "kubernetes", Path: "k8s.io/kubernetes/cmd/kube-proxy", Flags: ldflags},
	"kube-scheduler":          {Module: "kubernetes", Path: "k8s.io/kubernetes/cmd/kube-scheduler", Flags: ldflags},
	"kubectl":                 {Module: "kubernetes", Path: "k8s.io/kubernetes/cmd/kubectl", Flags: ldflags},
	"helm":                    {Module: "helm", Path: "helm.sh/helm/v4/cmd/helm", Flags: ldflags},
	"kubelet":                 {Module: "kubernetes", Path: "k8s.io/kubernetes/cmd/kubelet", Flags: ldflags},
}

// Build builds programs of Kubernetes by name. It returns the folder of the binaries, below .cache
// of the repository at root. It reuses binaries of earlier calls. If several processes build the
// same program, one builds it and the others wait. Build writes a line to progress for each long
// step.
func Build(ctx context.Context, root string, progress io.Writer, names ...string) (string, error) {
	for _, name := range names {
		if _, ok := programs[name]; !ok {
			return "", fmt.Errorf("%s is no program of Kubernetes", name)
		}
	}
	return gobuild.Build(ctx, root, "kubernetes-"+Version, progress, programs, names...)
}

// Root returns the root of the repository that contains the folder dir.
func Root(dir string) (string, error) { return gobuild.Root(dir) }
