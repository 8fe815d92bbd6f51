// Package source publishes the World of a folder of YAML and of the endpoints on a command line, with names looked up: the
// one place where the programs that run without a cluster get their objects.
package source

import (
	"context"
	"log/slog"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/resolve"
)

// Source is where objects come from.
type Source struct {
	// Dir is a folder of YAML, empty for none.
	Dir string
	// Endpoints are HOST:PORT; they are the pool [objects.EndpointsPool].
	Endpoints []string
}

// Read returns the World once, without the endpoints that names stand for.
func (s Source) Read() (*objects.World, error) {
	all := objects.Endpoints(s.Endpoints)
	if s.Dir != "" {
		set, err := dir.Read(s.Dir)
		if err != nil {
			return nil, err
		}
		all = all.Join(set)
	}
	return objects.Build(all), nil
}

// Follow publishes the World at the start, and each time that an object or the addresses of a name change, until ctx ends.
// Refused is called with the number of files that are not in force; it may be nil. It calls publish from one goroutine.
func (s Source) Follow(ctx context.Context, log *slog.Logger, refused func(files int), publish func(*objects.World)) error {
	fixed := objects.Endpoints(s.Endpoints)
	resolver := resolve.New(resolve.System, log)
	group, ctx := errgroup.WithContext(ctx)
	if s.Dir == "" {
		resolver.Set(fixed)
	} else {
		folder := dir.New(s.Dir, log, refused)
		group.Go(func() error {
			return folder.Run(ctx, func(set objects.Set) { resolver.Set(fixed.Join(set)) })
		})
	}
	var known []string // problems that were told
	group.Go(func() error {
		return resolver.Run(ctx, func(set objects.Set) {
			world := objects.Build(set)
			for _, p := range world.Problems {
				if !slices.Contains(known, p) {
					log.Warn("objects", "problem", p)
				}
			}
			known = world.Problems
			publish(world)
		})
	})
	return group.Wait()
}
