package adapters

import (
	"context"

	"github.com/headgate/headgate/control/agent/files"
	"github.com/headgate/headgate/control/agent/storage"
)

// Stored returns the Files of a Store that has only adapters.
func Stored(s *files.Store) Files { return stored{s} }

type stored struct{ *files.Store }

// Fetch fetches the files of an adapter, and returns the path of its folder.
func (s stored) Fetch(ctx context.Context, name string, source storage.Source) (string, error) {
	local, err := s.Store.Fetch(ctx, name, source)
	return local.Path, err
}

// Names returns the adapters that have files.
func (s stored) Names() []string {
	models := s.Models()
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = m.ID
	}
	return names
}
