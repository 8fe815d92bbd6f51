package place

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/store"
)

// An operator drains an endpoint as Kubernetes drains a pod whose preStop hook waits for control:
// the endpoint migrates, with the operator as one more source that reports its end. It stays out of
// use until the operator puts it back, or until the objects lack it.

// drainSource is the name of operators as a source of ends of endpoints, beside objectsSource and
// the names of extprocs.
const drainSource = "drain"

// Drainer drains endpoints for operators. It is safe for concurrent use.
type Drainer struct {
	// Placer moves the models.
	Placer *Placer
}

// Drain is the progress of an endpoint that an operator drains.
type Drain struct {
	// Drained: an operator drains the endpoint. Done: no load of its models elsewhere is left.
	Drained, Done bool
	decide.Migration
	// Behind are the extprocs that may still send requests to it, sorted.
	Behind []string
	// Unmoved has a line with the reason for each model that could not be moved.
	Unmoved []string
}

// errUnknownEndpoint is the error about an endpoint that no object declares.
type errUnknownEndpoint struct {
	endpoint string
	known    []string
}

// mostKnown is the maximum number of endpoints that an error names.
const mostKnown = 20

func (e errUnknownEndpoint) Error() string {
	if len(e.known) == 0 {
		return fmt.Sprintf("there is no endpoint %s, and no other one: control has no objects with endpoints", e.endpoint)
	}
	more := ""
	if n := len(e.known) - mostKnown; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("there is no endpoint %s; there is %s%s", e.endpoint, strings.Join(e.known[:min(len(e.known), mostKnown)], ", "), more)
}

// ErrUnknownEndpoint reports whether an error is about an endpoint that no object declares.
func ErrUnknownEndpoint(err error) bool {
	_, is := errors.AsType[errUnknownEndpoint](err)
	return is
}

// unknown returns an error if no object declares an endpoint. The caller holds the Placer's mu.
func (d Drainer) unknown(endpoint string) error {
	if d.Placer.endpoints[endpoint] != nil {
		return nil
	}
	return errUnknownEndpoint{endpoint, slices.Sorted(maps.Keys(d.Placer.endpoints))}
}

// Drain begins to drain an endpoint, and returns when that is stored. Its models move to other
// endpoints, at most until a time. It changes nothing if the endpoint is drained already.
func (d Drainer) Drain(endpoint string, until time.Time) error {
	p := d.Placer
	p.mu.Lock()
	if err := d.unknown(endpoint); err != nil {
		p.mu.Unlock()
		return err
	}
	_, is := p.drains[endpoint]
	p.mu.Unlock()
	if is {
		return nil
	}
	if err := p.Memory.PutDrain(store.Drain{Endpoint: endpoint, Until: until}); err != nil {
		return err
	}
	p.update(func(time.Time) []decide.Action {
		if d.unknown(endpoint) != nil { // removed meanwhile
			p.Memory.DeleteDrain(endpoint)
			return nil
		}
		p.drains[endpoint] = until
		p.state.Terminating(drainSource, endpoint, true, until)
		return nil
	})
	p.Log.Info("an operator drains the endpoint", "endpoint", endpoint, "until", until)
	return nil
}

// Undo puts an endpoint back. It changes nothing if no operator drains the endpoint.
func (d Drainer) Undo(endpoint string) error {
	p := d.Placer
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := d.unknown(endpoint); err != nil {
		return err
	}
	if _, is := p.drains[endpoint]; !is {
		return nil
	}
	forgetDrain(p, endpoint)
	p.updateLocked(func(time.Time) []decide.Action {
		p.state.Terminating(drainSource, endpoint, false, time.Time{})
		return nil
	})
	p.Log.Info("an operator puts the endpoint back", "endpoint", endpoint)
	return nil
}

// forgetDrain deletes the record that an endpoint is drained. The caller holds p.mu.
func forgetDrain(p *Placer, endpoint string) {
	if _, is := p.drains[endpoint]; is {
		delete(p.drains, endpoint)
		p.Memory.DeleteDrain(endpoint)
	}
}

// Progress returns the progress of a drain.
func (d Drainer) Progress(endpoint string) (is Drain, err error) {
	p := d.Placer
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := d.unknown(endpoint); err != nil {
		return is, err
	}
	_, is.Drained = p.drains[endpoint]
	m, begun := p.state.Migration(endpoint)
	is.Migration, is.Unmoved = m, unmoved(m)
	is.Done = is.Drained && (m.Done || !begun) // if the engine was already stopping, its migration never begins
	if is.Done {
		is.Behind = p.Publisher.StillSending([]string{endpoint})
	}
	return is, nil
}
