package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/headgate/headgate/internal/objects/kinds"
)

const (
	// callTimeout bounds a call that is no watch.
	callTimeout = 10 * time.Second
	// dialTimeout bounds a connection, of which client-go's own default waits 30 s where nobody answers: so much later it
	// would be seen that somebody does again.
	dialTimeout = 5 * time.Second
)

// Connect says how an API server is called: as the kubeconfig file says; without one as $KUBECONFIG, else as the service
// account of the pod that this process runs in, else as ~/.kube/config. It calls nobody.
func Connect(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("cannot find the API server: set --kubeconfig FILE or $KUBECONFIG, or run in a pod with a service account")
	}
	if err != nil {
		return nil, fmt.Errorf("the API server: %w", err)
	}
	// The defaults of 5 calls a second are too few for a leader that writes the status of many models at once.
	c.QPS, c.Burst = 50, 100
	c.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	return c, nil
}

// schemeOf has the kinds of a table, Secrets and ConfigMaps.
func schemeOf(table []kinds.Kind) *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(secrets.GroupVersion(), new(corev1.Secret), new(corev1.SecretList), new(corev1.ConfigMap), new(corev1.ConfigMapList))
	metav1.AddToGroupVersion(s, secrets.GroupVersion())
	for _, k := range table {
		s.AddKnownTypeWithName(k.GroupVersionKind, k.New())
		s.AddKnownTypeWithName(k.GroupVersion().WithKind(k.Kind+"List"), k.NewList())
		metav1.AddToGroupVersion(s, k.GroupVersion())
	}
	return s
}

// Where Secrets and ConfigMaps are, which are no objects of a Set: each is read by its name.
var (
	secrets    = corev1.SchemeGroupVersion.WithResource("secrets")
	configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")
)

// mapperOf knows the paths of the kinds of a table, of Secrets and of ConfigMaps, so that the API server need not be asked for them: they are the same
// everywhere, and a program may start while it is away.
func mapperOf(table []kinds.Kind) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(kind schema.GroupVersionKind, resource schema.GroupVersionResource, scope meta.RESTScope) {
		single := resource.GroupVersion().WithResource(strings.ToLower(kind.Kind))
		m.AddSpecific(kind, resource, single, scope)
	}
	add(corev1.SchemeGroupVersion.WithKind("Secret"), secrets, meta.RESTScopeNamespace)
	add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), configMaps, meta.RESTScopeNamespace)
	crd := schema.FromAPIVersionAndKind(CRDType.APIVersion, CRDType.Kind)
	add(crd, crd.GroupVersion().WithResource("customresourcedefinitions"), meta.RESTScopeRoot)
	for _, k := range table {
		scope := meta.RESTScopeNamespace
		if k.ClusterScoped {
			scope = meta.RESTScopeRoot
		}
		add(k.GroupVersionKind, k.Resource, scope)
	}
	return m
}

// CRDType is of a CRD as [Client] reads it: its metadata alone.
var CRDType = metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}

// Client returns a client of the kinds that are read, those of a Network too, and of the metadata of CRDs, which asks the API server each
// time.
func Client(c *rest.Config) (client.Client, error) {
	return clientOf(c, kinds.WithNetwork())
}

func clientOf(c *rest.Config, table []kinds.Kind) (client.Client, error) {
	c = rest.CopyConfig(c)
	c.Timeout = callTimeout
	asks, err := client.New(c, client.Options{Scheme: schemeOf(table), Mapper: mapperOf(table)})
	if err != nil {
		return nil, fmt.Errorf("the API server: %w", err)
	}
	return asks, nil
}

// loggers are those of Kubernetes' libraries: they have one for the whole process, which may be set once.
var loggers sync.Once

// UseLog makes Kubernetes' libraries write into a log, the first that is given. They may not be in use yet. Below debug they
// would write what an API server answers, Secrets too: that is left out whatever the level of the log.
func UseLog(log *slog.Logger) {
	loggers.Do(func() {
		sink := logr.FromSlogHandler(discreet{log.Handler()})
		klog.SetLogger(sink)
		ctrllog.SetLogger(sink)
	})
}

// discreet is a handler of a log without what is below debug.
type discreet struct{ slog.Handler }

func (d discreet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelDebug && d.Handler.Enabled(ctx, level)
}

func (d discreet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return discreet{d.Handler.WithAttrs(attrs)}
}

func (d discreet) WithGroup(name string) slog.Handler { return discreet{d.Handler.WithGroup(name)} }
