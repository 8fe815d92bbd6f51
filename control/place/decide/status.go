package decide

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Status is the state of a model, for operators and clients.
type Status struct {
	objects.Entry
	LastUsed time.Time
	// Queued is the number of requests, in all extprocs, that wait for the model.
	Queued int
	// Copies are the model's copies, sorted by endpoint.
	Copies []Copy
	// Failures are the model's failed loads that have not expired.
	Failures []Failure
	// Asked: a client asked for a copy although no request waits, and has received neither a copy
	// nor the reason why there is none.
	Asked bool
	// Why is the reason why the model has fewer copies than it needs; empty if it has enough.
	Why Reason
	// Failed is the value of Why that waiting requests get as their answer; empty while they should
	// wait.
	Failed Reason
	// Retrying: the model's last load ended with a transient error, and control will retry the
	// load.
	Retrying bool
	// Exhausted: several loads in a row ended with transient errors and no request waits. This is
	// treated as a permanent failure.
	Exhausted bool
	// Bytes is the model's size; 0 if unknown. Sized is the source of that size.
	Bytes int64
	Sized SizeSource
}

// Status returns the state of a model, and whether it is in the catalogue.
func (s *State) Status(key Key) (Status, bool) {
	m := s.models[key]
	if m == nil || m.gone {
		return Status{}, false
	}
	return statusOf(m), !m.foreign
}

func statusOf(m *model) Status {
	st := Status{
		Entry: m.Entry, LastUsed: m.lastUsed, Failures: slices.Clone(m.failures), Asked: m.ensure, Why: m.blocked, Failed: m.failed,
		Bytes: m.bytes, Sized: m.source,
	}
	for _, w := range m.wants {
		st.Queued += w.Requests
	}
	st.Retrying = m.retries > 0 && (st.Queued > 0 || m.least() > 0 || slices.ContainsFunc(m.failures, m.isTransient))
	st.Exhausted = m.exhausted()
	for _, c := range m.copies {
		st.Copies = append(st.Copies, *c)
	}
	return st
}

// All returns the status of all models, sorted: those in the catalogue, and other models that
// engines have.
func (s *State) All() []Status {
	all := make([]Status, 0, len(s.models))
	for _, key := range slices.SortedFunc(maps.Keys(s.models), Key.Compare) {
		if m := s.models[key]; !m.gone {
			all = append(all, statusOf(m))
		}
	}
	return all
}

// String prints VModels, models with their copies, and the reasons for missing copies, for tests
// and debugging.
func (s *State) String() string {
	var out strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(s.vmodels), Key.Compare) {
		st, _ := s.VModel(key)
		fmt.Fprintf(&out, "%s: %s", st.ID, st.Active)
		if st.Target != st.Active {
			fmt.Fprintf(&out, ", moves to %s: %d of %d copies loaded", st.Target, st.Loaded, st.Needed)
		}
		if st.Previous != "" {
			fmt.Fprintf(&out, ", keeps %s for %v", st.Previous, st.Until.Sub(s.now))
		}
		if st.Failed != "" {
			fmt.Fprintf(&out, " [%s]", st.Failed)
		}
		if st.Taken {
			out.WriteString(" is a model")
		}
		out.WriteString("\n")
	}
	for _, st := range s.All() {
		fmt.Fprintf(&out, "%s:", st.ID)
		for _, c := range st.Copies {
			fmt.Fprintf(&out, " %s at %s", c.State, c.Endpoint)
			if c.Bytes > 0 {
				fmt.Fprintf(&out, " (%dMi %s)", c.Bytes>>20, SizeSources[c.Source])
			}
		}
		for _, f := range st.Failures {
			fmt.Fprintf(&out, " failed at %s: %s", f.Endpoint, f.Message)
		}
		if st.Why != "" {
			fmt.Fprintf(&out, " [%s]", st.Why)
		}
		out.WriteString("\n")
	}
	return out.String()
}

// Count contains numbers for metrics.
type Count struct {
	Copies                         [len(objects.CopyStates)]int // number of copies, by state
	Models, Wanted, Failing, Stuck int
	Queued                         int // number of requests, in all extprocs, that wait for models
	// LastMissing is when, in each pool, the most recently used model without a copy was last used;
	// zero if there is no such model. Here, a queued copy is a copy, too: every model that was used
	// later is loaded, being loaded or queued.
	LastMissing map[objects.Name]time.Time
}

// Count returns the current numbers.
func (s *State) Count() Count {
	c := Count{LastMissing: make(map[objects.Name]time.Time)}
	for _, p := range s.pools {
		c.Stuck += len(p.stuck)
	}
	for _, m := range s.models {
		if m.gone {
			continue
		}
		c.Models++
		c.LastMissing[m.Pool] = latest(c.LastMissing[m.Pool], m.lastMissing())
		c.Wanted += truth(len(m.wants) > 0)
		c.Failing += truth(len(m.failures) > 0)
		for _, w := range m.wants {
			c.Queued += w.Requests
		}
		for _, copied := range m.copies {
			c.Copies[copied.State]++
		}
	}
	return c
}

// lastMissing returns the last use of a model that is in the catalogue and has no copy, not even a
// queued one; zero for other models.
func (m *model) lastMissing() time.Time {
	if m.gone {
		return time.Time{}
	}
	for _, c := range m.copies {
		if c.remains() {
			return time.Time{}
		}
	}
	return m.lastUsed
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Copy returns a copy, and whether it exists.
func (s *State) Copy(key CopyKey) (Copy, bool) {
	if c := s.copy(key); c != nil {
		return *c, true
	}
	return Copy{}, false
}

// At returns the copies at an endpoint whose model has this id: at most one for each of the
// endpoint's pools.
func (s *State) At(address, id string) (keys []CopyKey) {
	if e := s.endpoints[address]; e != nil {
		for _, p := range e.pools {
			if c := e.copies[Key{Pool: p, ID: id}]; c != nil {
				keys = append(keys, c.CopyKey)
			}
		}
	}
	return keys
}

// CopiesAt returns the copies of an endpoint, sorted.
func (s *State) CopiesAt(address string) (all []Copy) {
	if e := s.endpoints[address]; e != nil {
		for _, c := range e.sorted() {
			all = append(all, *c)
		}
	}
	return all
}

// Copies returns all copies, unsorted.
func (s *State) Copies() []Copy {
	var all []Copy
	for _, e := range s.endpoints {
		for _, c := range e.copies {
			all = append(all, *c)
		}
	}
	return all
}

// Unscraped returns the number of endpoints that have not been scraped yet.
func (s *State) Unscraped() int { return s.unscraped }
