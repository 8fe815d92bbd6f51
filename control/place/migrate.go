package place

import (
	"fmt"
	"strings"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// Migration is the progress of a pod's migration: its models get copies elsewhere before it ends.
type Migration struct {
	// Selected: pools select the pod, so it has endpoints. Terminating: the pod is being deleted.
	// Migrates: the pod's pre-stop hook waits for the migration, until Until at the latest.
	Selected, Terminating, Migrates bool
	Until                           time.Time
	// Done: no more models are loaded elsewhere for the pod. Behind are the extprocs that may still
	// send requests to it, sorted.
	Done   bool
	Behind []string
	// Words contains a line about each endpoint for operators.
	Words []string
}

// Over reports whether the pod's pre-stop hook may return.
func (m Migration) Over() bool { return m.Done && len(m.Behind) == 0 }

// Migration returns the progress of a pod's migration.
func (p *Placer) Migration(pod objects.Name) (is Migration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	is.Done = true
	var addresses []string
	for _, e := range p.world.Engines {
		if e.Listed || e.Pod != pod {
			continue
		}
		is.Selected = true
		is.Terminating = is.Terminating || e.Terminating
		if e.Migrates.IsZero() {
			continue
		}
		is.Migrates, is.Until = true, e.Migrates
		addresses = append(addresses, e.Address)
		m, begun := p.state.Migration(e.Address)
		is.Words = append(is.Words, migrationWords(e.Address, m, begun))
		is.Done = is.Done && (m.Done || !begun) // if the engine was already stopping, its migration never begins
	}
	if is.Done && len(addresses) > 0 {
		is.Behind = p.Publisher.StillSending(addresses)
	}
	return is
}

// mostUnmoved is the largest number of unmoved models that are listed by name.
const mostUnmoved = 20

func migrationWords(address string, m decide.Migration, begun bool) string {
	if !begun {
		return address + ": its engine is stopping already, nothing is moved"
	}
	words := fmt.Sprintf("%s: %d models moved", address, m.Moved)
	if m.Moving > 0 {
		words += fmt.Sprintf(", %d on their way", m.Moving)
	}
	if m.Idle > 0 {
		words += fmt.Sprintf(", %d let go that nobody has used for an hour", m.Idle)
	}
	if len(m.Unmoved) > 0 {
		words += fmt.Sprintf(", %d not moved: %s", len(m.Unmoved), strings.Join(unmoved(m), "; "))
	}
	return words
}

// unmoved returns a line with the reason for each model that could not be moved, and the number of
// those beyond mostUnmoved.
func unmoved(m decide.Migration) (all []string) {
	for _, u := range m.Unmoved[:min(len(m.Unmoved), mostUnmoved)] {
		why := u.Why.Message()
		if why == "" {
			why = "there was no time"
		}
		all = append(all, fmt.Sprintf("%s has %d of %d copies elsewhere, for %s", u.ID, u.Copies, u.Wanted, why))
	}
	if more := len(m.Unmoved) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return all
}

// noteMigrated logs the outcome of an endpoint's migration. The migration of an endpoint without
// models may begin and end at once. The caller holds mu.
func (p *Placer) noteMigrated(address string, was, is decide.Leaving) {
	m, begun := p.state.Migration(address)
	ended := was.IsMigrating() || !was.Is() && is.Is()
	if !begun || !ended || is.IsMigrating() {
		return
	}
	log := p.Log.With("endpoint", address, "moved", m.Moved, "idle", m.Idle)
	if len(m.Unmoved) == 0 {
		log.Info("the models of the leaving endpoint have been moved")
		return
	}
	log.Warn("not all models of the leaving endpoint could be moved", "not", len(m.Unmoved), "why", unmoved(m))
}
