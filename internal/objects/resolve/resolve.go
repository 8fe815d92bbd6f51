// Package resolve resolves the names in EndpointLists. It stands between the sources of objects and
// the World: it adds Hosts to a [objects.Set], and publishes the Set again whenever a name's
// addresses change.
//
// It is a separate package because name resolution is I/O, which the World does not do, and because
// it is the same for every source.
package resolve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

const (
	// interval is the time between two lookups of a name. The TTL of container and service names in
	// DNS is 5 to 30 s.
	interval = 5 * time.Second
	// timeout limits one lookup: resolvers wait 5 s for a silent server, and then try the next one.
	timeout = 8 * time.Second
	// patience limits how long new objects wait for the first result of each name, so that an edit
	// takes effect soon even if DNS is slow.
	patience = time.Second
)

// Lookup returns the addresses of a DNS name.
type Lookup func(ctx context.Context, name string) ([]netip.Addr, error)

// System uses this machine's resolver.
func System(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}

// Once resolves each name once and returns the addresses by name, and the errors of the others. It
// takes at most 8 s.
func Once(ctx context.Context, lookup Lookup, names []string) (hosts map[string][]netip.Addr, faults map[string]error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	hosts, faults = make(map[string][]netip.Addr), make(map[string]error)
	var mu sync.Mutex // guards both maps
	var lookups sync.WaitGroup
	for _, name := range names {
		lookups.Go(func() {
			addresses, err := lookup(ctx, name)
			addresses, _ = usable(addresses)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				faults[name] = err
			case len(addresses) == 0:
				faults[name] = errNoAddress
			default:
				hosts[name] = addresses
			}
		})
	}
	lookups.Wait()
	return hosts, faults
}

// Resolver adds resolved addresses to Sets. Make one with [New], run it with [Resolver.Run], and
// pass it the objects with [Resolver.Set].
type Resolver struct {
	lookup Lookup
	log    *slog.Logger
	sets   chan objects.Set // capacity 1: the newest Set that Run has not received; never closed

	// Used only by Run.
	names   map[string]*name
	answers chan answer
}

// name is a name being resolved.
type name struct {
	stop      context.CancelFunc
	addresses []netip.Addr // last resolved
	refused   []netip.Addr // last resolved, but left out
	answered  bool         // there has been a result, possibly an error
	failing   bool
}

// answer is the result of one lookup.
type answer struct {
	of        *name
	name      string
	addresses []netip.Addr // unfiltered
	err       error
}

// New returns a Resolver without objects.
func New(lookup Lookup, log *slog.Logger) *Resolver {
	return &Resolver{
		lookup: lookup, log: log, sets: make(chan objects.Set, 1),
		names: make(map[string]*name), answers: make(chan answer),
	}
}

// Set replaces the objects. Calls must not be concurrent.
func (r *Resolver) Set(s objects.Set) {
	select {
	case <-r.sets: // drop the older Set that was not received
	default:
	}
	r.sets <- s
}

// Run publishes the objects with the addresses of their names: each new Set, and the same Set again
// when a name's addresses change, until ctx ends. It calls publish from one goroutine.
func (r *Resolver) Run(ctx context.Context, publish func(objects.Set)) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var set objects.Set
	var due bool               // something must be published
	var limit <-chan time.Time // the end of patience, then nil
	for {
		select {
		case <-ctx.Done():
			return nil
		case set = <-r.sets:
			r.follow(ctx, set.Names(), &loops)
			due, limit = true, time.After(patience)
		case a := <-r.answers:
			due = r.take(a) || due
		case <-limit:
			limit = nil
		}
		if due && (limit == nil || r.complete()) {
			set.Hosts = r.hosts()
			publish(set)
			due, limit = false, nil
		}
	}
}

// follow resolves exactly these names from now on. Names that stay keep their addresses.
func (r *Resolver) follow(ctx context.Context, names []string, loops *sync.WaitGroup) {
	for known, n := range r.names {
		if !slices.Contains(names, known) {
			n.stop()
			delete(r.names, known)
		}
	}
	for _, wanted := range names {
		if r.names[wanted] != nil {
			continue
		}
		own, stop := context.WithCancel(ctx)
		n := &name{stop: stop}
		r.names[wanted] = n
		loops.Go(func() { r.loop(own, wanted, n) })
	}
}

// loop resolves one name periodically until ctx ends.
func (r *Resolver) loop(ctx context.Context, wanted string, n *name) {
	for {
		limited, cancel := context.WithTimeout(ctx, timeout)
		addresses, err := r.lookup(limited, wanted)
		cancel()
		select {
		case <-ctx.Done():
			return
		case r.answers <- answer{n, wanted, addresses, err}:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
	}
}

// usable returns the sorted addresses that may be endpoints, and those at which no engine can be. A
// name with addresses of both families means the same hosts twice, which would count their load
// twice, so it uses IPv4.
func usable(addresses []netip.Addr) (all, refused []netip.Addr) {
	var v4, v6 []netip.Addr
	for _, a := range addresses {
		switch a = a.Unmap(); {
		case objects.CheckIP(a) != nil:
			refused = append(refused, a)
		case a.Is4():
			v4 = append(v4, a)
		case a.Is6() && a.Zone() == "":
			v6 = append(v6, a)
		}
	}
	if all = v4; len(all) == 0 {
		all = v6
	}
	slices.SortFunc(all, netip.Addr.Compare)
	slices.SortFunc(refused, netip.Addr.Compare)
	return slices.Compact(all), slices.Compact(refused)
}

var errNoAddress = errors.New("it has no address that an engine can have")

// take applies a result and reports whether the name's addresses changed. A failure changes
// nothing; its beginning and its end are logged.
func (r *Resolver) take(a answer) bool {
	n := a.of
	if r.names[a.name] != n {
		return false // the name is no longer used
	}
	n.answered = true
	addresses, refused := usable(a.addresses)
	if a.err == nil {
		for _, ip := range refused {
			if !slices.Contains(n.refused, ip) {
				r.log.Warn("ignoring an address of an endpoint's name", "name", a.name, "address", ip, "err",
					objects.CheckIP(ip))
			}
		}
		n.refused = refused
		if len(addresses) == 0 {
			a.err = errNoAddress
		}
	}
	if a.err != nil {
		if !n.failing {
			r.log.Warn("cannot resolve an endpoint's name; keeping its last addresses; retrying", "name", a.name, "addresses", n.addresses,
				"err", a.err)
		}
		n.failing = true
		return false
	}
	if n.failing {
		r.log.Info("an endpoint's name resolves again", "name", a.name)
	}
	n.failing = false
	if slices.Equal(n.addresses, addresses) {
		return false
	}
	r.log.Info("an endpoint's name resolves", "name", a.name, "addresses", addresses)
	n.addresses = addresses
	return true
}

// complete reports whether every name has had a result.
func (r *Resolver) complete() bool {
	for _, n := range r.names {
		if !n.answered {
			return false
		}
	}
	return true
}

func (r *Resolver) hosts() map[string][]netip.Addr {
	hosts := make(map[string][]netip.Addr, len(r.names))
	for known, n := range r.names {
		hosts[known] = n.addresses
	}
	return hosts
}
