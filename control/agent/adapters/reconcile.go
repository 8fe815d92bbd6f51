package adapters

import (
	"context"
	"net/http"
	"slices"
	"time"
)

// reconcileInterval is how often files are compared with the engine's list.
const reconcileInterval = 10 * time.Second

// absences is how many lists in a row must lack an adapter before its files are released. An engine
// with several frontend processes may list an adapter only a moment after it was loaded.
const absences = 2

// Run releases the files of adapters that the engine no longer lists, until ctx ends: after a
// restart of the engine, or after a call whose answer was lost. While the engine lists an adapter,
// its files stay, since the engine may read them again.
func (s *Server) Run(ctx context.Context) {
	tick := time.NewTicker(reconcileInterval)
	defer tick.Stop()
	absent := make(map[string]int) // lists in a row that lack an adapter with files
	for {
		s.reconcile(ctx, absent)
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.client.CloseIdleConnections()
			return
		}
	}
}

// reconcile compares the files with the engine's list once.
func (s *Server) reconcile(ctx context.Context, absent map[string]int) {
	names := s.config.Files.Names()
	if len(names) == 0 {
		clear(absent)
		return
	}
	listed, err := s.list(ctx, nil)
	if err != nil {
		return // the engine does not answer, so its adapters are unknown
	}
	for name := range absent {
		if !slices.Contains(names, name) {
			delete(absent, name)
		}
	}
	for _, name := range names {
		if slices.Contains(listed, name) || !s.locks.Idle(name) {
			delete(absent, name)
			continue
		}
		if absent[name]++; absent[name] < absences {
			continue
		}
		delete(absent, name)
		end, err := s.locks.Lock(ctx, name)
		if err != nil {
			return
		}
		s.releaseUnlisted(ctx, nil, name) // asks again, since a load may have come in between
		end()
	}
}

// releaseUnlisted releases the files of an adapter, unless the engine lists it or does not answer.
// The caller has the adapter's turn.
func (s *Server) releaseUnlisted(ctx context.Context, by *http.Request, name string) {
	if listed, err := s.list(ctx, by); err == nil && !slices.Contains(listed, name) {
		s.release(name)
	}
}

// release releases the files of an adapter.
func (s *Server) release(name string) {
	if err := s.config.Files.Release(name); err != nil {
		s.config.Log.Error("cannot release the files of an adapter", "adapter", name, "err", err)
	}
}
