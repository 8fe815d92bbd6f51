package cost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/bench/pace"
	"github.com/headgate/headgate/internal/process"
)

// cell is a load.
type cell struct {
	name, title string
	shape
	clients  int
	requests int  // in each round
	half     bool // at half of the highest rate of these clients, else in a closed loop
}

// shorter is the factor by which --short makes rounds shorter.
const shorter = 6

// cells are all cells, in the order of the output. Many streams run at a time, so that one costs
// more than the gateway uses when idle meanwhile.
var cells = []cell{
	{"1KB-1", "1 KB, 1 client", shape{size: 1 << 10}, 1, 3600, false},
	{"1KB-32", "1 KB, 32 clients", shape{size: 1 << 10}, 32, 15000, false},
	{"half", "1 KB, half of the highest rate", shape{size: 1 << 10}, 32, 4800, true},
	{"100KB-1", "100 KB, 1 client", shape{size: 100 << 10}, 1, 1200, false},
	{"100KB-32", "100 KB, 32 clients", shape{size: 100 << 10}, 32, 3600, false},
	{"stream", "stream of 200 events, 64 clients", shape{size: 1 << 10, stream: true}, 64, 384, false},
	{"usage", "the same, with usage", shape{size: 1 << 10, stream: true, usage: true}, 64, 384, false},
}

// warmUp is how many requests in a row must succeed before a measurement.
const warmUp = 40

// settled is the time between the warm-up and a measurement: a process that was stopped has
// scraped its endpoints again.
const settled = 200 * time.Millisecond

// requests measures the variants in the cells, and prints the tables.
func (b *bench) requests(ctx context.Context, r *rigs) error {
	began := time.Now()
	var shown []variant
	for i, v := range variants {
		if !slices.Contains(b.variants, v.name) || v.name == "smg" && r.smg == "" || v.name == "base" && r.old == "" {
			continue
		}
		b.report("starting %s", v.name)
		if err := r.start(ctx, v, i); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		shown = append(shown, v)
	}
	gateways := r.started
	defer func() {
		for _, g := range gateways {
			g.close()
		}
		r.started = nil
	}()
	all, idle := make(results), make(map[string][]cores)
	done := 0
	for ; done < b.rounds; done++ {
		if spent := time.Since(began); done > 0 && spent+spent/time.Duration(done) > b.budget {
			break
		}
		if err := r.allAtRest(ctx, shown, gateways, idle); err != nil {
			return err
		}
		if err := r.round(ctx, done, b.rounds, b.cells, shown, gateways, all); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.out, "medians of %d rounds (lowest–highest), one Envoy worker\n\n", done)
	if done < b.rounds {
		fmt.Fprintf(b.out, "The machine was too slow for %d rounds in %v.\n\n", b.rounds, b.budget)
	}
	all = all.without(idle)
	all.table(b.out, b.cells, shown)
	all.ratioTable(b.out, b.cells)
	idleTable(b, shown, idle)
	all.sides(b.out, b.cells, idle)
	return nil
}

// start starts a variant, waits until it serves, and stops its processes.
func (r *rigs) start(ctx context.Context, v variant, n int) error {
	at, err := r.place(v.name, n+1)
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	g, err := v.start(starting, r, at)
	if g != nil {
		r.started = append(r.started, g)
	}
	if err != nil {
		return err
	}
	if err := await(ctx, g.address, shape{size: 1 << 10}, warmUp); err != nil {
		faults := []error{}
		for _, p := range g.processes() {
			faults = append(faults, &process.NotReady{Process: p, Fault: err.Error()})
		}
		return errors.Join(faults...)
	}
	g.pause()
	return nil
}

// allAtRest measures what each idle variant uses.
func (r *rigs) allAtRest(ctx context.Context, shown []variant, gateways []*gateway, idle map[string][]cores) error {
	for i, v := range shown {
		is, err := r.atRest(ctx, gateways[i])
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		idle[v.name] = append(idle[v.name], is)
	}
	return nil
}

// round measures each variant in each cell once; n is the number of this round. The variants take
// turns in going first.
func (r *rigs) round(ctx context.Context, n, rounds int, cells []cell, shown []variant, gateways []*gateway, all results) error {
	for _, c := range cells {
		var line strings.Builder
		for i := range shown {
			at := (i + n) % len(shown)
			v := shown[at]
			s, err := r.measure(ctx, gateways[at], c)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", c.name, v.name, err)
			}
			all.add(c.name, v.name, s)
			fmt.Fprintf(&line, " %s %.0f", v.name, s.both()/micro)
		}
		r.report("round %d of %d: %s, µs:%s", n+1, rounds, c.name, line.String())
	}
	return nil
}

// atRest returns the cores that an idle gateway uses.
func (r *rigs) atRest(ctx context.Context, g *gateway) (cores, error) {
	g.resume()
	defer g.pause()
	if err := sleep(ctx, 2*settled); err != nil {
		return cores{}, err
	}
	before, err := r.read(g)
	began := time.Now()
	if err != nil {
		return cores{}, err
	}
	if err := sleep(ctx, r.rest); err != nil {
		return cores{}, err
	}
	after, err := r.read(g)
	wall := time.Since(began).Seconds()
	used := after.minus(before)
	return cores{used.envoy.Seconds() / wall, used.server.Seconds() / wall}, err
}

// measure sends the requests of a cell through a gateway.
func (r *rigs) measure(ctx context.Context, g *gateway, c cell) (sample, error) {
	g.resume()
	defer g.pause()
	if err := await(ctx, g.address, shape{size: c.size}, warmUp); err != nil {
		return sample{}, err
	}
	clients, err := dial(ctx, g.address, c.clients, c.shape)
	if err != nil {
		return sample{}, err
	}
	defer clients.close()
	if !c.stream {
		if _, err := clients.send(ctx, pace.Load{Requests: 2 * c.clients}); err != nil { // opens connections to the engines
			return sample{}, err
		}
	}
	load := pace.Load{Requests: c.requests}
	if c.half {
		began := time.Now()
		if _, err := clients.send(ctx, load); err != nil {
			return sample{}, err
		}
		load.Rate = float64(load.Requests) / time.Since(began).Seconds() / 2
	}
	if err := sleep(ctx, settled); err != nil {
		return sample{}, err
	}
	before, err := r.read(g)
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	took, err := clients.send(ctx, load)
	wall := time.Since(began)
	if err != nil {
		return sample{}, err
	}
	after, err := r.read(g)
	if err != nil {
		return sample{}, err
	}
	if g.envoy != nil { // its log grows by several hundred bytes with each request
		if err := os.Truncate(g.envoy.Log, 0); err != nil {
			return sample{}, err
		}
	}
	return sampleOf(after.minus(before), wall, took), nil
}

// read reads the CPU times of a gateway's processes, the engines, this process and the machine.
func (r *rigs) read(g *gateway) (is reading, err error) {
	for _, one := range []struct {
		of   *process.Process
		used *time.Duration
	}{{g.envoy, &is.envoy}, {g.server, &is.server}, {r.serving, &is.engines}} {
		if one.of != nil {
			if *one.used, err = process.CPUTime(one.of.PID()); err != nil {
				return is, fmt.Errorf("%s: %w; has it ended?", one.of.Name, err)
			}
		}
	}
	if is.client, err = process.CPUTime(os.Getpid()); err != nil {
		return is, err
	}
	is.machine, err = busyNow()
	return is, err
}

// sleep waits for a duration, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// idleTable prints what idle gateways use.
func idleTable(b *bench, shown []variant, idle map[string][]cores) {
	t := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "idle, %d endpoints with a page of 2 KB (subtracted above)\tEnvoy, cores\tserver, cores\t\n", numEngines)
	for _, v := range shown {
		var envoy, server []float64
		for _, c := range idle[v.name] {
			envoy, server = append(envoy, c.envoy), append(server, c.server)
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t\n", v.title, spreadOf(envoy).text("%.4f", 1), spreadOf(server).text("%.4f", 1))
	}
	t.Flush()
	fmt.Fprintln(b.out)
}
