// Package source publishes the World: objects from a folder of YAML or an API server, plus the
// endpoints of a command line, with names resolved. Programs get their objects only from here.
package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/kube"
	"github.com/headgate/headgate/internal/objects/resolve"
)

// Source is where objects come from.
type Source struct {
	// Dir is a folder of YAML, empty for none.
	Dir string
	// Kube is an API server, instead of a folder.
	Kube Kube
	// Endpoints are HOST:PORT; they are the pool [objects.EndpointsPool].
	Endpoints []string
	// Also are kinds read in addition to those of every program, [kinds.All]. They are not read
	// from a single namespace of an API server, since the right to read one namespace does not
	// cover cluster-scoped kinds. A folder may have the kinds of Gateways in any case.
	Also []kinds.Kind
	// Offers says that the program uses the World's offers of listeners.
	Offers bool
	// Named are the pools that flags name, by flag: one that does not exist is a problem of the
	// World.
	Named map[string]objects.Name
	// Rejected, if not nil, is called with the fault of each rejected file of the folder, sorted by
	// name, whenever the folder was read. It is called from one goroutine.
	Rejected func(faults []string)
	// ByName, if not nil, is called before anything is published, with the readers of objects by
	// name, so that others than the engine tokens can use them.
	ByName func(kube.Named)
}

// Kube is the flags that name an API server.
type Kube struct {
	// On says that objects come from an API server.
	On bool
	// Config is a kubeconfig file; empty for $KUBECONFIG, else the pod's own service account.
	Config string
	// Namespace is the namespace to read; empty means all.
	Namespace string
}

// Register adds the flags.
func (k *Kube) Register(fs *pflag.FlagSet) {
	fs.BoolVar(&k.On, "kube", false,
		"read the objects from a Kubernetes API server: that of --kubeconfig, else of $KUBECONFIG, else of the cluster in which this pod runs")
	fs.StringVar(&k.Config, "kubeconfig", "", "with --kube: find the API server in this kubeconfig `FILE`")
	fs.StringVar(&k.Namespace, "namespace", "",
		"with --kube: read the objects of this `NAMESPACE` only, and no Gateways; empty means all namespaces")
}

// Check returns an error if these flags conflict with each other or with the folder. folder is
// empty if the command line names none.
func (k Kube) Check(folder string) error {
	switch {
	case k.On && folder != "":
		return errors.New("--kube and --objects: objects come from an API server or from a folder; leave one of them out")
	case !k.On && k.Config+k.Namespace != "":
		return errors.New("--kubeconfig and --namespace need --kube")
	}
	return nil
}

// Meter receives metrics of reading the objects. It must be safe for concurrent use.
type Meter interface {
	// Refused sets the number of refused files of a folder, or refused objects of an API server.
	Refused(n int)
	// Readable reports whether the objects can be read.
	Readable(ok bool)
}

// Read returns the World once, with each name resolved once: one that does not resolve is a problem
// of the World.
func (s Source) Read(ctx context.Context) (*objects.World, error) {
	set, err := s.Objects(ctx, s.table())
	if err != nil {
		return nil, err
	}
	all := objects.Endpoints(s.Endpoints).Join(set)
	var faults map[string]error
	all.Hosts, faults = resolve.Once(ctx, resolve.System, all.Names())
	world := s.build(all, new(attach.Latest))
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		world.Problems = append(world.Problems, fmt.Sprintf("cannot resolve the name %s of an endpoint: %v", name, faults[name]))
	}
	return world, nil
}

// Objects reads the objects of the kinds of a table once. Names are not resolved.
func (s Source) Objects(ctx context.Context, table []kinds.Kind) (objects.Set, error) {
	switch {
	case s.Kube.On:
		config, err := kube.Connect(s.Kube.Config)
		if err != nil {
			return objects.Set{}, err
		}
		return kube.Read(ctx, config, s.Kube.Namespace, table)
	case s.Dir != "":
		return dir.Read(s.Dir, table)
	}
	return objects.Set{}, nil
}

// table returns the kinds to read.
func (s Source) table() []kinds.Kind {
	switch {
	case s.Dir != "":
		own := slices.DeleteFunc(slices.Clone(s.Also), func(k kinds.Kind) bool { return !k.FolderOnly })
		return slices.Concat(kinds.WithNetwork(), own)
	case s.Kube.Namespace == "":
		return slices.Concat(kinds.All(), kinds.OfServers(s.Also))
	}
	return kinds.All()
}

// build makes a World with the offers of listeners and the problems of the command line.
func (s Source) build(set objects.Set, attached *attach.Latest) *objects.World {
	world := objects.Build(set)
	if s.Offers && world.Network != nil {
		world.Offers = attached.Of(world.Network).Offers(world)
	}
	for _, flag := range slices.Sorted(maps.Keys(s.Named)) {
		if pool := s.Named[flag]; pool != (objects.Name{}) && world.Pools[pool] == nil {
			world.Problems = append(world.Problems, fmt.Sprintf("--%s names InferencePool %s, which does not exist", flag, pool))
		}
	}
	return world
}

// Follow publishes the World at the start and whenever an object or the addresses of a name change,
// until ctx ends. It calls publish from one goroutine. Tokens named by PoolSettings of an API
// server are in tokens before the World is published, if they can be read soon, and are updated
// when they change.
func (s Source) Follow(ctx context.Context, log *slog.Logger, tokens *engineclient.Tokens, meter Meter,
	publish func(*objects.World),
) error {
	fixed := objects.Endpoints(s.Endpoints)
	resolver := resolve.New(resolve.System, log)
	group, ctx := errgroup.WithContext(ctx)
	join := func(set objects.Set) { resolver.Set(fixed.Join(set)) }
	named := func(*objects.World) {}
	switch {
	case s.Kube.On:
		config, err := kube.Connect(s.Kube.Config)
		if err != nil {
			return err
		}
		server, err := kube.New(config, s.Kube.Namespace, s.table(), log, meter)
		if err != nil {
			return err
		}
		byName, err := kube.NewNamed(config)
		if err != nil {
			return err
		}
		engines := kube.NewEngineTokens(byName.Secrets, tokens, log)
		if s.ByName != nil {
			s.ByName(byName)
		}
		named = func(w *objects.World) { engines.Name(ctx, w.Secrets()) }
		group.Go(func() error { return byName.Secrets.Run(ctx) })
		group.Go(func() error { return byName.ConfigMaps.Run(ctx) })
		group.Go(func() error { return server.Run(ctx, join) })
	case s.Dir != "":
		meter.Readable(true)
		refused := func(faults []string) {
			meter.Refused(len(faults))
			if s.Rejected != nil {
				s.Rejected(faults)
			}
		}
		group.Go(func() error { return dir.New(s.Dir, s.table(), log, refused).Run(ctx, join) })
	default:
		meter.Readable(true)
		resolver.Set(fixed)
	}
	var known []string // problems already logged
	attached := new(attach.Latest)
	group.Go(func() error {
		return resolver.Run(ctx, func(set objects.Set) {
			world := s.build(set, attached)
			for _, p := range world.Problems {
				if !slices.Contains(known, p) {
					log.Warn("objects have a problem", "problem", p)
				}
			}
			known = world.Problems
			named(world)
			publish(world)
		})
	})
	return group.Wait()
}
