package place

import (
	"fmt"
	"strings"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// Migration is how far a pod has got whose models are to have copies elsewhere before it ends.
type Migration struct {
	// Selected says that pools select the pod, so that it has endpoints; Terminating that it is
	// being deleted, and Migrates that its hooks are to wait for that, until Until.
	Selected, Terminating, Migrates bool
	Until                           time.Time
	// Done says that nothing is loaded elsewhere for its sake any more, and Behind are the extprocs
	// that may send it requests still, in order.
	Done   bool
	Behind []string
	// Words are for people, a line for each endpoint.
	Words []string
}

// Over says whether there is nothing left to wait for.
func (m Migration) Over() bool { return m.Done && len(m.Behind) == 0 }

// Migration says how far a pod has got.
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
		is.Done = is.Done && (m.Done || !begun) // one that was stopping before has not begun
	}
	if is.Done && len(addresses) > 0 {
		is.Behind = p.Board.StillSending(addresses)
	}
	return is
}

// mostUnmoved bounds how many models are named that could not be moved.
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

// unmoved says of each model that could not be moved why, but for those that are too many to name.
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

// noteMigrated logs what has become of the models of an endpoint that migrates no more. One that
// had none may begin and end at once. The caller holds mu.
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
