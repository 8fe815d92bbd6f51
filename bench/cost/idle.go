package cost

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/internal/process"
)

// fleets are the numbers of endpoints of the part idle.
var fleets = []int{8, 64, 1000}

// scraped are the pages of metrics of the part idle.
var scraped = []struct{ title, file string }{{"48 KB", pageIdle}, {"82 KB", pageLoaded}}

// warmScrapes is how long an extproc scrapes before it is measured.
const warmScrapes = 3 * time.Second

// program is an extproc to measure without Envoy.
type program struct {
	title, headgate string
	flags           []string
}

// programs returns extproc, and that of --base if there is one.
func (r *rigs) programs() []program {
	all := []program{{"extproc", r.headgate, r.flags}}
	if r.old != "" {
		all = append(all, program{"extproc of --base", filepath.Join(r.old, "headgate.bin"), nil})
	}
	return all
}

// resting are the figures of an idle extproc.
type resting struct {
	cores, engines float64
	memory         float64 // bytes
	scrapes        float64 // per second and endpoint
}

// idle measures what scraping idle endpoints costs.
func (b *bench) idle(ctx context.Context, r *rigs) error {
	rounds := min(b.rounds, 3)
	if b.rest < time.Second { // --short
		rounds = 1
	}
	t := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "idle, medians of %d rounds\tpage\tendpoints\tcores\tscrapes/s of each\tmemory, MB\tengines, cores\t\n", rounds)
	for _, page := range scraped {
		if b.rest < time.Second && page.file == pageIdle {
			continue
		}
		memory := make(map[string][]float64) // by program, of each number of endpoints
		for _, n := range fleets {
			all := make(map[string][]resting)
			for range rounds {
				for _, p := range r.programs() {
					is, err := r.resting(ctx, p, page.file, n)
					if err != nil {
						return fmt.Errorf("%s, %d endpoints: %w", p.title, n, err)
					}
					all[p.title] = append(all[p.title], is)
					b.report("%s, %s, %d endpoints: %.3f cores, %.0f MB", p.title, page.title, n, is.cores, is.memory/1e6)
				}
			}
			for _, p := range r.programs() {
				figure := func(of func(resting) float64) spread {
					var is []float64
					for _, one := range all[p.title] {
						is = append(is, of(one))
					}
					return spreadOf(is)
				}
				m := figure(func(r resting) float64 { return r.memory })
				memory[p.title] = append(memory[p.title], m.median)
				fmt.Fprintf(t, "  %s\t%s\t%d\t%s\t%s\t%s\t%s\t\n", p.title, page.title, n,
					figure(func(r resting) float64 { return r.cores }).text("%.3f", 1),
					figure(func(r resting) float64 { return r.scrapes }).text("%.1f", 1), m.text("%.0f", 1e6),
					figure(func(r resting) float64 { return r.engines }).text("%.3f", 1))
			}
		}
		for _, p := range r.programs() {
			m := memory[p.title]
			each := (m[len(m)-1] - m[0]) / float64(fleets[len(fleets)-1]-fleets[0])
			fmt.Fprintf(t, "  %s\t%s\teach\t\t\t%.3f\t\t\n", p.title, page.title, each/1e6)
		}
	}
	t.Flush()
	fmt.Fprintln(b.out)
	return nil
}

// addresses returns addresses for n engines.
func (r *rigs) addresses(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s20:%d", r.net, 10000+i)
	}
	return all
}

// resting starts engines and an extproc, and measures the extproc while nothing is sent.
func (r *rigs) resting(ctx context.Context, p program, page string, n int) (is resting, err error) {
	addresses := r.addresses(n)
	at, err := r.place("idle", 30)
	if err != nil {
		return is, err
	}
	defer os.RemoveAll(at.dir)
	serving, err := r.startEngines(ctx, "idle-engines", page, addresses)
	if err != nil {
		return is, err
	}
	defer serving.Stop(time.Second)
	server, err := r.startExtproc(ctx, at, p.headgate, append([]string{"--endpoints", strings.Join(addresses, ",")}, p.flags...))
	if server != nil {
		defer server.Stop(2 * time.Second)
	}
	if err != nil {
		return is, err
	}
	if err := sleep(ctx, warmScrapes); err != nil {
		return is, err
	}
	wall := max(r.rest, 2*time.Second)
	url := "http://" + addresses[0] + scrapesPath
	before, err := count(ctx, url)
	if err != nil {
		return is, err
	}
	began := time.Now()
	used, err := over(ctx, wall, server, serving)
	if err != nil {
		return is, err
	}
	after, err := count(ctx, url)
	if err != nil {
		return is, err
	}
	is = resting{cores: used[0], engines: used[1], scrapes: (after - before) / time.Since(began).Seconds() / float64(n)}
	is.memory, err = memoryOf(server.PID())
	return is, err
}

// count returns the number that a URL answers.
func count(ctx context.Context, url string) (float64, error) {
	text, err := get(ctx, url)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(text, 64)
}

// over returns the cores that processes use in a time.
func over(ctx context.Context, wall time.Duration, all ...*process.Process) ([]float64, error) {
	read := func() (is []time.Duration, err error) {
		for _, p := range all {
			used, err := process.CPUTime(p.PID())
			if err != nil {
				return nil, err
			}
			is = append(is, used)
		}
		return is, nil
	}
	before, err := read()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := sleep(ctx, wall); err != nil {
		return nil, err
	}
	after, err := read()
	took := time.Since(began).Seconds()
	is := make([]float64, 0, len(all))
	for i, used := range after {
		is = append(is, (used-before[i]).Seconds()/took)
	}
	return is, err
}
