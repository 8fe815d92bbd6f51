// Package resolve keeps the addresses of the names in EndpointLists. It stands between the sources of objects and the
// World: a [objects.Set] goes in, and comes out with its Hosts, again each time that a name moves.
//
// It is a room of its own because looking up a name is I/O, which the World does not do, and because it is the same for
// every source: a folder, the command line.
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
	// interval is between two lookups of a name. Names of containers and services have lives of 5 to 30 s in DNS.
	interval = 5 * time.Second
	// timeout bounds one lookup: the default of resolvers for one server that is silent, and the next one's turn.
	timeout = 8 * time.Second
	// patience bounds how long new objects wait for the first answer of each of their names, so that an edit is soon in
	// force whatever DNS does.
	patience = time.Second
)

// Lookup returns the addresses of a DNS name.
type Lookup func(ctx context.Context, name string) ([]netip.Addr, error)

// System asks the resolver of this machine.
func System(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}

// Once looks up names, each of them once, and returns the addresses of those that have any, and why the others have none, by
// name. It takes 8 s at most.
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

// Resolver adds to Sets what their names resolve to. Make one with [New], run it with [Resolver.Run], and tell it the
// objects with [Resolver.Set].
type Resolver struct {
	lookup Lookup
	log    *slog.Logger
	sets   chan objects.Set // capacity 1: the latest that Run has not taken; never closed

	// Owned by Run.
	names   map[string]*name
	answers chan answer
}

// name is one that is looked up.
type name struct {
	stop      context.CancelFunc
	addresses []netip.Addr // as last resolved
	refused   []netip.Addr // as last resolved too, and left out
	answered  bool         // once at least, if only by a failure
	failing   bool
}

// answer is the end of one lookup.
type answer struct {
	of        *name
	name      string
	addresses []netip.Addr // whatever they are
	err       error
}

// New returns a Resolver of nothing.
func New(lookup Lookup, log *slog.Logger) *Resolver {
	return &Resolver{
		lookup: lookup, log: log, sets: make(chan objects.Set, 1),
		names: make(map[string]*name), answers: make(chan answer),
	}
}

// Set says which objects are in force from now on. It is not safe for concurrent use with itself.
func (r *Resolver) Set(s objects.Set) {
	select {
	case <-r.sets: // not taken yet: out of date
	default:
	}
	r.sets <- s
}

// Run publishes the objects with the addresses of their names: each new Set, and the same again when a name has other
// addresses, until ctx ends. It calls publish from one goroutine.
func (r *Resolver) Run(ctx context.Context, publish func(objects.Set)) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var set objects.Set
	var due bool               // something is to be published
	var limit <-chan time.Time // the end of patience, nil after it
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

// follow looks up these names from now on, and no others. Those that stay keep their addresses.
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

// loop looks up one name until ctx ends.
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

// usable returns the addresses that are endpoints, in order, and those at which no engine can be. A name with addresses of
// both families means the same hosts by both: counting each of them twice would count their load twice, so IPv4 goes first.
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

var errNoAddress = errors.New("it has no address of an engine")

// take keeps an answer, and reports whether the name's addresses changed. A failure changes nothing, and is logged when
// it begins and when it ends.
func (r *Resolver) take(a answer) bool {
	n := a.of
	if r.names[a.name] != n {
		return false // of a name that is followed no more
	}
	n.answered = true
	addresses, refused := usable(a.addresses)
	if a.err == nil {
		for _, ip := range refused {
			if !slices.Contains(n.refused, ip) {
				r.log.Warn("leaving out an address to which an endpoint's name resolves", "name", a.name, "address", ip, "err", objects.CheckIP(ip))
			}
		}
		n.refused = refused
		if len(addresses) == 0 {
			a.err = errNoAddress
		}
	}
	if a.err != nil {
		if !n.failing {
			r.log.Warn("cannot resolve an endpoint's name; keeping its last addresses; retrying", "name", a.name, "addresses", n.addresses, "err", a.err)
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

// complete says whether every name has had an answer.
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
