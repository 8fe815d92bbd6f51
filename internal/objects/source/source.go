// Package source publishes the World of a folder of YAML or of an API server, and of the endpoints on a command line, with
// names looked up: the one place where programs get their objects.
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
	// Kube is an API server, in the place of a folder.
	Kube Kube
	// Endpoints are HOST:PORT; they are the pool [objects.EndpointsPool].
	Endpoints []string
	// Also are kinds that are followed beside those that every program follows, [kinds.All]. A folder may have those of Gateways in any
	// case. Of one namespace of an API server they are not followed: who may read no other namespace may not read whose classes there are.
	Also []kinds.Kind
	// Offers says that somebody asks the World what listeners offer.
	Offers bool
	// Named are pools that flags name, by flag: one that does not exist is a problem of the World.
	Named map[string]objects.Name
	// ByName is given what of an API server is read by its name, for other users than the tokens of engines, before anything is published;
	// nil if there are none.
	ByName func(kube.Named)
}

// Kube is the flags that name an API server.
type Kube struct {
	// On says that objects come from an API server.
	On bool
	// Config is a kubeconfig file; empty for $KUBECONFIG, else the pod's own service account.
	Config string
	// Namespace is the one whose objects count; empty means all.
	Namespace string
}

// Register adds the flags.
func (k *Kube) Register(fs *pflag.FlagSet) {
	fs.BoolVar(&k.On, "kube", false, "read the objects from a Kubernetes API server: that of --kubeconfig, else of $KUBECONFIG, else of the cluster in which this pod runs")
	fs.StringVar(&k.Config, "kubeconfig", "", "with --kube: find the API server in this kubeconfig `FILE`")
	fs.StringVar(&k.Namespace, "namespace", "", "with --kube: read the objects of this `NAMESPACE` only, and no Gateways; empty means all namespaces")
}

// Check says what is wrong with a command line that also names a folder, empty for none.
func (k Kube) Check(folder string) error {
	switch {
	case k.On && folder != "":
		return errors.New("--kube and --objects: objects come from an API server or from a folder; leave one of them out")
	case !k.On && k.Config+k.Namespace != "":
		return errors.New("--kubeconfig and --namespace are of no use without --kube")
	}
	return nil
}

// Meter is told how the objects are followed. It must be safe for concurrent use.
type Meter interface {
	// Refused says how many files of a folder, or objects of an API server, are not in force.
	Refused(n int)
	// Readable says whether objects can be read where they come from.
	Readable(ok bool)
}

// Read returns the World once, with each name looked up once: one that does not resolve is a problem of the World.
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

// Objects returns once what the folder or the API server has of the kinds of a table, with no name resolved.
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

// table is the kinds that are read.
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

// build makes a World, with what listeners offer, and the problems that the command line has with it.
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

// Follow publishes the World at the start, and each time that an object or the addresses of a name change, until ctx ends.
// It calls publish from one goroutine. What PoolSettings of an API server name as tokens is in tokens before the World is
// published, if it can be had soon, and each time that it changes.
func (s Source) Follow(ctx context.Context, log *slog.Logger, tokens *engineclient.Tokens, meter Meter, publish func(*objects.World)) error {
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
		group.Go(func() error { return dir.New(s.Dir, s.table(), log, meter.Refused).Run(ctx, join) })
	default:
		meter.Readable(true)
		resolver.Set(fixed)
	}
	var known []string // problems that were told
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
