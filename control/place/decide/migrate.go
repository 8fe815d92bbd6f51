package decide

import (
	"maps"
	"slices"
	"time"
)

// An endpoint migrates while its pod is being deleted and waits for us: it serves on, nothing is
// loaded or unloaded there, and each model there that was used of late gets as many copies
// elsewhere as there were, the most recently used first. Nobody else's room is taken for that but
// of models that are missed less. When nothing is left that could be moved, or there is no more
// time, it migrates no more: then it is left like any other whose pod is being deleted.

const (
	// movedIfUsed is how recently a model was used that is moved; others are loaded again when
	// somebody asks (ModelMesh.java, preShutdown).
	movedIfUsed = time.Hour
	// tellTime is what is left, when an endpoint migrates no more, for all to hear of it before the
	// pod's hook has to return.
	tellTime = 2 * time.Second
)

// Migration is how far an endpoint has got that migrates.
type Migration struct {
	// Done says that it serves no more, and that nothing is loaded elsewhere for its sake.
	Done bool
	// Moved is how many of its models have their copies elsewhere, Moving of how many copies are on
	// their way.
	Moved, Moving int
	// Idle is how many nobody has used for an hour: they are let go.
	Idle int
	// Unmoved are those that have fewer copies elsewhere than there were, with no more on their
	// way, in order.
	Unmoved []Unmoved
}

// Unmoved is a model that has fewer copies than there were.
type Unmoved struct {
	Key
	Copies, Wanted int
	// Why is empty where there was no time.
	Why Reason
}

// migration is what is known of an endpoint that migrates, or has.
type migration struct {
	moves map[Key]bool // the models that are to be moved
	end   Migration    // as it was when it was done
}

// IsMigrating says whether the endpoint serves on until its models have copies elsewhere.
func (l Leaving) IsMigrating() bool {
	return l.Terminating && !l.Migrates.IsZero() && l.Stopping.IsZero()
}

// until is when an endpoint migrates no more, whatever it has still.
func (l Leaving) until() time.Time { return l.Migrates.Add(-tellTime) }

// Migration returns how far an endpoint has got, and whether it migrates or has done so.
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

// beginMigration notes what an endpoint has that begins to migrate.
func beginMigration(s *State, e *endpoint) {
	e.migration = &migration{moves: make(map[Key]bool)}
	s.noteEndpoint(migrationChanged, e)
	for _, c := range e.copies {
		c.before = true
	}
}

// endMigration notes that an endpoint migrates no more.
func endMigration(s *State, e *endpoint) {
	e.migration.end = progress(s, e)
	e.migration.end.Done = true
	s.noteEndpoint(migrationChanged, e)
}

// planMigrations finds which models are to be moved, and how many copies they are to have
// elsewhere: as many as they had before the first of their endpoints began to migrate. Of copies
// that became known later nobody knows that, as after a restart of this process, which may have
// moved some already: then as many as migrate.
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
			fresh[m] += truth(c.before)
		}
	}
	clear(s.due.migrations)
	for m, before := range fresh {
		goal := max(m.goal, migratingCopies(m))
		if before > 0 {
			goal = max(goal, remaining(m)+before)
		}
		if m.Max > 0 {
			goal = min(goal, m.Max)
		}
		m.goal = goal
		s.moving[m.ModelKey] = true
		s.noteModel(modelNeeds, m)
	}
	for key := range s.moving {
		if m := s.models[key]; m == nil || migratingCopies(m) == 0 {
			if delete(s.moving, key); m != nil {
				m.goal = 0
				s.noteModel(modelNeeds, m)
			}
		}
	}
	return nil
}

// migratingCopies is how many copies a model has at endpoints from which it is to be moved.
func migratingCopies(m *model) (n int) {
	for _, c := range m.copies {
		if e := c.endpoint; c.State == Loaded && e.IsMigrating() && e.migration.moves[m.ModelKey] {
			n++
		}
	}
	return n
}

// needs is how many copies a model is to have where requests can be sent, even if none waits.
func (m *model) needs() int { return max(m.least(), m.goal) }

// endMigrations ends the migrations that have nothing left to wait for.
func endMigrations(s *State, now time.Time) []Action {
	for _, address := range slices.Sorted(maps.Keys(s.clock.endpoints)) {
		e := s.endpoints[address]
		if !e.IsMigrating() {
			continue
		}
		seen := e.state != unknown // else nobody knows what it has
		if now.Before(e.until()) && (!seen || progress(s, e).Moving > 0) {
			continue
		}
		l := e.Leaving
		l.Migrates = time.Time{}
		setLeaving(s, e, l)
	}
	return nil
}

// progress is how far an endpoint has got.
func progress(s *State, e *endpoint) (is Migration) {
	for _, c := range e.sorted() {
		m := c.model
		switch {
		case c.State != Loaded:
			continue
		case !e.migration.moves[c.Key]:
			is.Idle++
			continue
		}
		loaded, there := loadedCopies(s, c.Key), remaining(m)
		onTheWay := there > loaded || m.blocked == ""
		switch {
		case loaded >= m.goal:
			is.Moved++
		case onTheWay && e.IsMigrating():
			is.Moving++
		default:
			u := Unmoved{Key: c.Key, Copies: loaded, Wanted: m.goal}
			if !onTheWay {
				u.Why = m.blocked
			}
			is.Unmoved = append(is.Unmoved, u)
		}
	}
	return is
}
