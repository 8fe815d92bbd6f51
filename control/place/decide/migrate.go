package decide

import (
	"maps"
	"slices"
	"time"
)

// An endpoint migrates while its pod is being deleted and the pod's pre-stop hook waits for
// control. It serves, but nothing is loaded or unloaded there. Each of its recently used models
// gets as many copies elsewhere as it had here, the most recently used model first. Only models
// with a lower eviction value are evicted for these copies. Migration ends when no more models can
// be moved, or at its time limit. The endpoint is then treated like any endpoint whose pod is being
// deleted.

const (
	// movedIfUsed: a model is moved if its last use was at most this long ago. Other models are
	// loaded when a request names them (ModelMesh.java, preShutdown).
	movedIfUsed = time.Hour
	// publishTime is the time between the end of a migration and the end of the pod's hook. In this
	// time, every extproc learns that the endpoint no longer serves.
	publishTime = 2 * time.Second
)

// Migration is the progress of an endpoint's migration.
type Migration struct {
	// Done: the migration has ended, so no more models are loaded elsewhere for it.
	Done bool
	// Moved is the number of the endpoint's models that have all their copies elsewhere. Moving is
	// the number of models whose new copies are being loaded.
	Moved, Moving int
	// Idle is the number of models that are not moved because they were not used in the last hour.
	Idle int
	// Unmoved are the models that have fewer copies elsewhere than before, none of which is being
	// loaded. They are sorted.
	Unmoved []Unmoved
}

// Unmoved is a model that has fewer copies than before the migration.
type Unmoved struct {
	Key
	Copies, Wanted int
	// Why is the reason; empty if the time limit was reached.
	Why Reason
}

// migration is the state of an endpoint's migration.
type migration struct {
	moves map[Key]bool // the models to move
	end   Migration    // the progress at the end of the migration
}

// until returns when the migration ends even if models are still to be moved.
func (e *endpoint) until() time.Time { return e.Migrates.Add(-publishTime) }

// Migration returns the progress of an endpoint's migration. The result is false if it never began.
func (s *State) Migration(address string) (Migration, bool) {
	e := s.endpoints[address]
	switch {
	case e == nil || e.migration == nil:
		return Migration{}, false
	case e.migration.end.Done:
		return e.migration.end, true
	}
	return progress(s, e), true
}

// beginMigration records the copies of an endpoint that begins to migrate.
func beginMigration(s *State, e *endpoint) {
	e.migration = &migration{moves: make(map[Key]bool)}
	s.noteEndpoint(migrationChanged, e)
	for _, c := range e.copies {
		c.beforeMigration = true
	}
}

// endMigration records that an endpoint's migration has ended.
func endMigration(s *State, e *endpoint) {
	e.migration.end = progress(s, e)
	e.migration.end.Done = true
	s.noteEndpoint(migrationChanged, e)
}

// planMigrations decides which models to move, and how many copies they get elsewhere: as many as
// before the first of their endpoints began to migrate. If a copy is found later, such as after a
// restart of control, that number is unknown, and some copies may have been moved already. The
// model then gets as many copies as are at migrating endpoints.
func planMigrations(s *State, now time.Time) []Action {
	fresh := make(map[*model]int)
	for address := range s.due.migrations {
		e := s.endpoints[address]
		if !e.IsMigrating() {
			continue
		}
		for _, c := range e.copies {
			m := c.model
			if c.State != Loaded || now.Sub(m.lastUsed) >= movedIfUsed || e.migration.moves[m.ModelKey] {
				continue
			}
			e.migration.moves[m.ModelKey] = true
			fresh[m] += truth(c.beforeMigration)
		}
	}
	clear(s.due.migrations)
	for m, before := range fresh {
		goal := max(m.migrationGoal, migratingCopies(m))
		if before > 0 {
			goal = max(goal, remaining(m)+before)
		}
		if m.Max > 0 {
			goal = min(goal, m.Max)
		}
		m.migrationGoal = goal
		s.moving[m.ModelKey] = true
		s.noteModel(modelNeeds, m)
	}
	for key := range s.moving {
		if m := s.models[key]; m == nil || migratingCopies(m) == 0 {
			if delete(s.moving, key); m != nil {
				m.migrationGoal = 0
				s.noteModel(modelNeeds, m)
			}
		}
	}
	return nil
}

// migratingCopies counts a model's copies at migrating endpoints.
func migratingCopies(m *model) (n int) {
	for _, c := range m.copies {
		if e := c.endpoint; c.State == Loaded && e.IsMigrating() && e.migration.moves[m.ModelKey] {
			n++
		}
	}
	return n
}

// needs returns how many copies that can serve requests the model must have even if no request
// waits.
func (m *model) needs() int { return max(m.least(), m.migrationGoal) }

// endMigrations ends the migrations that have nothing left to move.
func endMigrations(s *State, now time.Time) []Action {
	for _, address := range slices.Sorted(maps.Keys(s.clock.endpoints)) {
		e := s.endpoints[address]
		if !e.IsMigrating() {
			continue
		}
		seen := e.state != unknown // before the first scrape, the endpoint's models are unknown
		if now.Before(e.until()) && (!seen || progress(s, e).Moving > 0) {
			continue
		}
		l := e.Leaving
		l.Migrates = time.Time{}
		setLeaving(s, e, l)
	}
	return nil
}

// progress returns the progress of an endpoint's migration.
func progress(s *State, e *endpoint) (is Migration) {
	for _, c := range e.sorted() {
		m := c.model
		switch {
		case c.State != Loaded:
			continue
		case !e.migration.moves[c.ModelKey]:
			is.Idle++
			continue
		}
		loaded, there := loadedCopies(s, c.ModelKey), remaining(m)
		onTheWay := there > loaded || m.blocked == ""
		switch {
		case loaded >= m.migrationGoal:
			is.Moved++
		case onTheWay && e.IsMigrating():
			is.Moving++
		default:
			u := Unmoved{Key: c.ModelKey, Copies: loaded, Wanted: m.migrationGoal}
			if !onTheWay {
				u.Why = m.blocked
			}
			is.Unmoved = append(is.Unmoved, u)
		}
	}
	return is
}
