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
	eventsv1 "k8s.io/api/events/v1"
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
	// callTimeout limits a call that is not a watch.
	callTimeout = 10 * time.Second
	// dialTimeout limits connection attempts. client-go's default is 30 s, which would delay
	// recovery after an outage by as much.
	dialTimeout = 5 * time.Second
)

// Connect returns the configuration for calling an API server: that of the kubeconfig file,
// otherwise of $KUBECONFIG, otherwise the service account of this process's pod, otherwise
// ~/.kube/config. It makes no calls.
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
	// The default of 5 calls per second is too low for a leader that writes the status of many
	// models at once.
	c.QPS, c.Burst = 50, 100
	c.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	return c, nil
}

// schemeOf returns a scheme with the kinds of a table, Secrets, ConfigMaps and Events.
func schemeOf(table []kinds.Kind) *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(secrets.GroupVersion(), new(corev1.Secret), new(corev1.SecretList), new(corev1.ConfigMap), new(corev1.ConfigMapList))
	metav1.AddToGroupVersion(s, secrets.GroupVersion())
	s.AddKnownTypes(eventsv1.SchemeGroupVersion, new(eventsv1.Event), new(eventsv1.EventList))
	metav1.AddToGroupVersion(s, eventsv1.SchemeGroupVersion)
	for _, k := range table {
		s.AddKnownTypeWithName(k.GroupVersionKind, k.New())
		s.AddKnownTypeWithName(k.GroupVersion().WithKind(k.Kind+"List"), k.NewList())
		metav1.AddToGroupVersion(s, k.GroupVersion())
	}
	return s
}

// Secrets and ConfigMaps are not part of a Set: each is read by name.
var (
	secrets    = corev1.SchemeGroupVersion.WithResource("secrets")
	configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")
)

// mapperOf knows the paths of the kinds of a table, of Secrets, ConfigMaps and Events. They are the
// same everywhere, so the API server need not be asked, and a program may start while it is away.
func mapperOf(table []kinds.Kind) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(kind schema.GroupVersionKind, resource schema.GroupVersionResource, scope meta.RESTScope) {
		single := resource.GroupVersion().WithResource(strings.ToLower(kind.Kind))
		m.AddSpecific(kind, resource, single, scope)
	}
	add(corev1.SchemeGroupVersion.WithKind("Secret"), secrets, meta.RESTScopeNamespace)
	add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), configMaps, meta.RESTScopeNamespace)
	add(eventsv1.SchemeGroupVersion.WithKind("Event"), eventsv1.SchemeGroupVersion.WithResource("events"), meta.RESTScopeNamespace)
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

// CRDType is the type of a CRD as [Client] reads it: only its metadata.
var CRDType = metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}

// Client returns an uncached client for the kinds that Headgate reads, including those of a
// Network, for Events, and for the metadata of CRDs.
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

// loggers guards the logger of Kubernetes' libraries, which is global and can be set once.
var loggers sync.Once

// UseLog makes Kubernetes' libraries write to a log; only the first call has an effect. It must be
// called before they are used. Messages below debug would contain API server responses, including
// Secrets, so they are dropped whatever the log's level.
func UseLog(log *slog.Logger) {
	loggers.Do(func() {
		sink := logr.FromSlogHandler(discreet{log.Handler()})
		klog.SetLogger(sink)
		ctrllog.SetLogger(sink)
	})
}

// discreet is a log handler that drops messages below debug.
type discreet struct{ slog.Handler }

func (d discreet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelDebug && d.Handler.Enabled(ctx, level)
}

func (d discreet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return discreet{d.Handler.WithAttrs(attrs)}
}

func (d discreet) WithGroup(name string) slog.Handler { return discreet{d.Handler.WithGroup(name)} }
