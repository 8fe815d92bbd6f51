package decide

import (
	"maps"
	"slices"
	"time"
)

// An endpoint migrates while its pod is being deleted and its pre-stop hook waits for control. It
// serves, but nothing is loaded or unloaded there. Each of its recently used models gets as many
// copies elsewhere as it had, the most recently used model first. Only models with a lower eviction
// value are evicted for that. Migration ends when nothing can be moved any more or time is up; then
// the endpoint is treated like any other whose pod is being deleted.

const (
	// movedIfUsed is the longest time since its last use for which a model is moved; others are
	// loaded again when a request names them (ModelMesh.java, preShutdown).
	movedIfUsed = time.Hour
	// publishTime is the time between the end of a migration and the end of the pod's hook, in
	// which every extproc learns of it.
	publishTime = 2 * time.Second
)

// Migration is the progress of an endpoint's migration.
type Migration struct {
	// Done: the migration has ended; no more models are loaded elsewhere for it.
	Done bool
	// Moved is the number of its models that have all their copies elsewhere. Moving is the number
	// of models whose copies are being loaded.
	Moved, Moving int
	// Idle is the number of models unused for an hour, which are not moved.
	Idle int
	// Unmoved are the models with fewer copies elsewhere than before and none being loaded, sorted.
	Unmoved []Unmoved
}

// Unmoved is a model that has fewer copies than before the migration.
type Unmoved struct {
	Key
	Copies, Wanted int
	// Why is the reason; empty if time was up.
	Why Reason
}

// migration is the state of an endpoint's migration.
type migration struct {
	moves map[Key]bool // the models to move
	end   Migration    // the final progress
}

// until returns when the migration ends, whatever is left to move.
func (e *endpoint) until() time.Time { return e.Migrates.Add(-publishTime) }

// Migration returns the progress of an endpoint's migration, and whether there is or was one.
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
// before the first of their endpoints began to migrate. For copies found later, such as after a
// restart of control, that number is unknown, and some may have been moved already; then it is the
// number of migrating copies.
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

// needs returns the number of copies that must be able to take requests even if no request waits.
func (m *model) needs() int { return max(m.least(), m.migrationGoal) }

// endMigrations ends the migrations that have nothing left to move.
func endMigrations(s *State, now time.Time) []Action {
	for _, address := range slices.Sorted(maps.Keys(s.clock.endpoints)) {
		e := s.endpoints[address]
		if !e.IsMigrating() {
			continue
		}
		seen := e.state != unknown // otherwise its models are unknown
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
