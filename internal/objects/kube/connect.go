package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
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
		return nil, errors.New("nothing says where the API server is: say --kubeconfig FILE or $KUBECONFIG, or run in a pod with a service account")
	}
	if err != nil {
		return nil, fmt.Errorf("the API server: %w", err)
	}
	// The defaults of 5 calls a second are too few for a leader that writes the status of many models at once.
	c.QPS, c.Burst = 50, 100
	c.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	return c, nil
}

// scheme has the kinds that are read.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, pool.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // kinds of our own
		}
	}
	return s
}()

// mapper knows the paths of the kinds that are read, so that the API server need not be asked for them: they are the same
// everywhere, and a program may start while it is away.
var mapper = func() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, k := range []struct {
		version            schema.GroupVersion
		kind, many, single string
	}{
		{schema.GroupVersion{Version: "v1"}, "Pod", "pods", "pod"},
		{schema.GroupVersion{Version: "v1"}, "Secret", "secrets", "secret"},
		{pool.SchemeGroupVersion, pool.Kind, "inferencepools", "inferencepool"},
		{v1alpha1.SchemeGroupVersion, v1alpha1.LLMRouteKind, "llmroutes", "llmroute"},
		{v1alpha1.SchemeGroupVersion, v1alpha1.ModelKind, "models", "model"},
		{v1alpha1.SchemeGroupVersion, v1alpha1.PoolSettingsKind, "poolsettings", "poolsettings"},
		{v1alpha1.SchemeGroupVersion, v1alpha1.EndpointListKind, "endpointlists", "endpointlist"},
	} {
		m.AddSpecific(k.version.WithKind(k.kind), k.version.WithResource(k.many), k.version.WithResource(k.single), meta.RESTScopeNamespace)
	}
	return m
}()

// Client returns a client of the kinds that are read, which asks the API server each time.
func Client(c *rest.Config) (client.Client, error) {
	c = rest.CopyConfig(c)
	c.Timeout = callTimeout
	asks, err := client.New(c, client.Options{Scheme: scheme, Mapper: mapper})
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
