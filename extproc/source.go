package main

import (
	"context"
	"log/slog"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/resolve"
)

// readOnce returns the World of the folder and of the endpoints on the command line, without those that names stand for.
func readOnce(c config) (*objects.World, error) {
	all := objects.Endpoints(c.endpoints)
	if c.objects != "" {
		set, err := dir.Read(c.objects)
		if err != nil {
			return nil, err
		}
		all = all.Join(set)
	}
	return objects.Build(all), nil
}

// follow publishes the World of the folder and of the endpoints on the command line, at the start and each time that an
// object or the addresses of a name change, until ctx ends. Refused is called with the number of files that are not in
// force. It calls publish from one goroutine.
func follow(ctx context.Context, c config, log *slog.Logger, refused func(files int), publish func(*objects.World)) error {
	fixed := objects.Endpoints(c.endpoints)
	resolver := resolve.New(resolve.System, log)
	group, ctx := errgroup.WithContext(ctx)
	if c.objects == "" {
		resolver.Set(fixed)
	} else {
		folder := dir.New(c.objects, log, refused)
		group.Go(func() error {
			return folder.Run(ctx, func(s objects.Set) { resolver.Set(fixed.Join(s)) })
		})
	}
	var known []string // problems that were told
	group.Go(func() error {
		return resolver.Run(ctx, func(s objects.Set) {
			world := objects.Build(s)
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
