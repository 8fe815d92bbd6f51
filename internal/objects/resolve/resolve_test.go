package resolve_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/resolve"
)

// dns answers lookups and records them.
type dns struct {
	mu      sync.Mutex
	hosts   map[string]string // addresses, or "silent", or "slow" and addresses
	lookups map[string]int
}

func (d *dns) set(name, addresses string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hosts[name] = addresses
}

func (d *dns) count(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lookups[name]
}

func (d *dns) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	d.mu.Lock()
	d.lookups[name]++
	text, ok := d.hosts[name]
	d.mu.Unlock()
	switch {
	case !ok:
		return nil, errors.New("no such host")
	case text == "silent":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	var all []netip.Addr
	for a := range strings.FieldsSeq(text) {
		all = append(all, netip.MustParseAddr(a))
	}
	return all, nil
}

// world is the pool of plain addresses in the last published Set.
type world struct {
	mu        sync.Mutex
	published int
	set       objects.Set
}

func (w *world) publish(s objects.Set) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.published++
	w.set = s
}

func (w *world) addresses() (string, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(objects.Build(w.set).Addresses(), " "), w.published
}

// run resolves in a synctest bubble; the resolver ends with the test.
func run(t *testing.T, test func(r *resolve.Resolver, d *dns, w *world, log *bytes.Buffer)) {
	synctest.Test(t, func(t *testing.T) {
		d := &dns{hosts: make(map[string]string), lookups: make(map[string]int)}
		w := new(world)
		var log bytes.Buffer // read while everything is idle
		r := resolve.New(d.lookup, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = r.Run(ctx, w.publish)
		}()
		test(r, d, w, &log)
		cancel()
		<-done // hangs the bubble if a loop is left
	})
}

// after advances the fake clock and waits until everything is idle.
func after(d time.Duration) {
	time.Sleep(d) // on the fake clock of synctest
	synctest.Wait()
}

func want(t *testing.T, w *world, addresses string) {
	t.Helper()
	if got, _ := w.addresses(); got != addresses {
		t.Errorf("the endpoints are %q, want %q", got, addresses)
	}
}

func TestNameIsResolvedRepeatedly(t *testing.T) {
	run(t, func(r *resolve.Resolver, d *dns, w *world, _ *bytes.Buffer) {
		d.set("engines.test", "10.0.0.2 10.0.0.1")
		r.Set(objects.Endpoints([]string{"10.0.0.9:80", "Engines.test:8000"}))
		synctest.Wait()
		want(t, w, "10.0.0.1:8000 10.0.0.2:8000 10.0.0.9:80")

		d.set("engines.test", "10.0.0.1 10.0.0.2") // the same addresses in another order
		after(5 * time.Second)
		if _, n := w.addresses(); n != 1 {
			t.Errorf("%d times published, want once: nothing changed", n)
		}
		d.set("engines.test", "10.0.0.3")
		after(5 * time.Second)
		want(t, w, "10.0.0.3:8000 10.0.0.9:80")
		if n := d.count("engines.test"); n != 3 {
			t.Errorf("%d lookups in 10 s, want 3", n)
		}

		r.Set(objects.Endpoints([]string{"10.0.0.9:80"}))
		after(time.Minute)
		want(t, w, "10.0.0.9:80")
		if n := d.count("engines.test"); n != 3 {
			t.Errorf("a name that is gone is looked up still")
		}
	})
}

func TestFailedLookupKeepsTheLastAddresses(t *testing.T) {
	run(t, func(r *resolve.Resolver, d *dns, w *world, log *bytes.Buffer) {
		d.set("engine", "10.0.0.1")
		r.Set(objects.Endpoints([]string{"engine:8000"}))
		synctest.Wait()
		for _, fault := range []string{"", "silent"} {
			d.set("engine", fault) // no address at all, then no response
			after(time.Minute)
			want(t, w, "10.0.0.1:8000")
		}
		if n := strings.Count(log.String(), "cannot resolve"); n != 1 {
			t.Errorf("the failure is logged %d times:\n%s", n, log)
		}
		d.set("engine", "10.0.0.2")
		after(time.Minute)
		want(t, w, "10.0.0.2:8000")
		if !strings.Contains(log.String(), "resolves again") {
			t.Errorf("its end is not logged:\n%s", log)
		}
	})
}

// Other endpoints do not wait for a name without a response; its endpoints are added when there is
// one.
func TestSilentNameDelaysNothing(t *testing.T) {
	run(t, func(r *resolve.Resolver, d *dns, w *world, _ *bytes.Buffer) {
		d.set("silent", "silent")
		d.set("engine", "10.0.0.1")
		r.Set(objects.Endpoints([]string{"silent:8000", "engine:8000", "unknown:8000"}))
		after(999 * time.Millisecond)
		if _, n := w.addresses(); n != 0 {
			t.Errorf("published without the patience for a first answer")
		}
		after(time.Millisecond)
		want(t, w, "10.0.0.1:8000")
		d.set("silent", "10.0.0.2")
		d.set("unknown", "10.0.0.3")
		after(15 * time.Second)
		want(t, w, "10.0.0.1:8000 10.0.0.2:8000 10.0.0.3:8000")

		d.set("silent", "silent")
		after(5 * time.Second)
		r.Set(objects.Endpoints([]string{"silent:8000", "engine:9000"}))
		synctest.Wait()
		want(t, w, "10.0.0.1:9000 10.0.0.2:8000") // both names have been resolved
	})
}

func TestNameOfBothFamiliesUsesIPv4(t *testing.T) {
	run(t, func(r *resolve.Resolver, d *dns, w *world, _ *bytes.Buffer) {
		d.set("both", "::1 127.0.0.1 ::ffff:127.0.0.2")
		d.set("six", "fd00::2 fd00::1 fd00::1 fe80::1%eth0")
		r.Set(objects.Endpoints([]string{"both:8000", "six:8000"}))
		synctest.Wait()
		want(t, w, "127.0.0.1:8000 127.0.0.2:8000 [fd00::1]:8000 [fd00::2]:8000")
	})
}

// Otherwise the owner of a name could make Headgate scrape a cloud's metadata service.
func TestImpossibleAddressIsLeftOut(t *testing.T) {
	run(t, func(r *resolve.Resolver, d *dns, w *world, log *bytes.Buffer) {
		const refused = "169.254.169.254 fe80::1 0.0.0.0 :: 224.0.0.1 ff02::1 255.255.255.255 ::ffff:169.254.169.253"
		d.set("engine", refused+" 169.254.169.254 10.0.0.1 fd00::1")
		d.set("metadata", refused)
		r.Set(objects.Endpoints([]string{"engine:8000", "metadata:80"}))
		after(time.Minute)
		want(t, w, "10.0.0.1:8000")
		for _, text := range []string{
			"name=engine address=169.254.169.254", "name=metadata address=169.254.169.254",
			"name=engine address=169.254.169.253", "name=engine address=::",
		} {
			if n := strings.Count(log.String(), text+" "); n != 1 {
				t.Errorf("%s is logged %d times:\n%s", text, n, log)
			}
		}

		// A name that moves there keeps its last good address. After a recovery, the next fault is
		// logged again.
		d.set("engine", "169.254.169.254")
		after(time.Minute)
		want(t, w, "10.0.0.1:8000")
		d.set("engine", "10.0.0.2")
		after(time.Minute)
		want(t, w, "10.0.0.2:8000")
		d.set("engine", "10.0.0.2 169.254.169.254")
		after(time.Minute)
		want(t, w, "10.0.0.2:8000")
		if n := strings.Count(log.String(), "name=engine address=169.254.169.254 "); n != 2 {
			t.Errorf("it is logged %d times:\n%s", n, log)
		}
	})
}

func TestSystemResolvesLocalhost(t *testing.T) {
	addresses, err := resolve.System(t.Context(), "localhost")
	if err != nil || len(addresses) == 0 || !addresses[0].IsLoopback() {
		t.Errorf("localhost is %v, %v", addresses, err)
	}
}

// A name without an address and a silent name are reported as errors.
func TestNamesResolvedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dns{hosts: map[string]string{"a": "10.0.0.2 10.0.0.1 fd00::1", "none": "", "mute": "silent"}, lookups: make(map[string]int)}
		began := time.Now()
		hosts, faults := resolve.Once(t.Context(), d.lookup, []string{"a", "none", "mute", "unknown"})
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it takes %v", took)
		}
		if len(hosts) != 1 || len(hosts["a"]) != 2 || hosts["a"][0].String() != "10.0.0.1" || d.count("a") != 1 {
			t.Errorf("hosts are %v", hosts)
		}
		if len(faults) != 3 || faults["none"].Error() != "it has no address that an engine can have" ||
			!errors.Is(faults["mute"], context.DeadlineExceeded) || faults["unknown"].Error() != "no such host" {
			t.Errorf("faults are %v", faults)
		}
	})
}
