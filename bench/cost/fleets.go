package cost

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/process"
)

// fleets are the numbers of endpoints, variable for tests. The smallest and the largest also get
// requests.
var fleets = []int{8, 64, 1000}

// fleetRate is the number of requests a second that fleets get.
const fleetRate = 400

// warmScrapes is how long an extproc scrapes before it is measured. It is variable for tests.
var warmScrapes = 3 * time.Second

// leastRest is the shortest time in which scrapes are measured. It is variable for tests.
var leastRest = 2 * time.Second

// scrapesAgain is how long an extproc that was stopped scrapes before it is measured.
const scrapesAgain = 1500 * time.Millisecond

// fleetKind is a kind of engines: what their pages of metrics show.
type fleetKind struct {
	title, page string
	busy        bool // requests run
}

var fleetKinds = []fleetKind{
	{"48 KB, idle", pageIdle, false},
	{"82 KB, idle", pageLoaded, false},
	{"48 KB, busy", pageIdle, true},
	{"82 KB, busy", pageLoaded, true},
}

// fleetSample has the figures of an extproc with a number of endpoints, in one round.
type fleetSample struct {
	n       int // of the endpoints
	cores   float64
	scrapes float64 // per second and endpoint
	age     float64 // seconds
	memory  float64 // bytes
	engines float64 // cores

	p50, p99, loadedAge float64 // seconds, while it gets requests; 0 if it got none
}

// endpoints measures what scraping costs, and how the number of endpoints delays requests.
func (b *bench) endpoints(ctx context.Context, r *rigs) error {
	rounds, chosen := 3, fleetKinds
	switch {
	case b.short:
		rounds, chosen = 1, []fleetKind{fleetKinds[1], fleetKinds[3]}
	case r.old != "":
		rounds = 2
	}
	var all []fleetResults
	for _, s := range chosen {
		is := fleetResults{kind: s, of: make(map[string][][]fleetSample)}
		for _, n := range fleets {
			samples, err := r.fleet(ctx, s, n, min(rounds, b.rounds))
			if err != nil {
				return fmt.Errorf("%s, %d endpoints: %w", s.title, n, err)
			}
			for i, p := range r.programs() {
				is.of[p.title] = append(is.of[p.title], samples[i])
			}
		}
		all = append(all, is)
	}
	fleetTable(b.out, all, names(r.programs(), func(p program) string { return p.title }))
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

// scraper is a running extproc without Envoy.
type scraper struct {
	*gateway
	at place
}

// fleet starts n engines, and measures each program with them in each round. The programs take
// turns; the others are stopped meanwhile. It returns the samples of each program.
func (r *rigs) fleet(ctx context.Context, s fleetKind, n, rounds int) (all [][]fleetSample, err error) {
	addresses := r.addresses(n)
	var flags []string
	if !s.busy {
		flags = append(flags, "--idle")
	}
	serving, err := r.startEngines(ctx, "fleet", s.page, addresses, flags...)
	if err != nil {
		return nil, err
	}
	defer serving.Stop(time.Second)
	programs := r.programs()
	var running []scraper
	for i, p := range programs {
		at, err := r.place("fleet-"+strconv.Itoa(i), 30+i)
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(at.dir)
		server, err := r.startExtproc(ctx, at, p.with("--endpoints", strings.Join(addresses, ",")))
		if server != nil {
			one := scraper{&gateway{server: server}, at}
			defer one.close()
			running = append(running, one)
		}
		if err == nil {
			err = sleep(ctx, warmScrapes)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.title, err)
		}
		if len(programs) > 1 {
			running[i].pause()
		}
	}
	all = make([][]fleetSample, len(programs))
	for round := range rounds {
		for i := range programs {
			i = (i + round) % len(programs)
			is, err := r.fleetSample(ctx, running[i], serving, "http://"+addresses[0]+scrapedPath, n, len(programs) > 1)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", programs[i].title, err)
			}
			all[i] = append(all[i], is)
			r.report("%s, %s, %d endpoints: %.3f cores, worst age %.2f s", programs[i].title, s.title, n, is.cores, is.age)
		}
	}
	return all, nil
}

// fleetSample measures an extproc while nothing is sent, and if it has few or many endpoints also
// while it gets requests. If it takes turns with others, it is stopped before and after.
func (r *rigs) fleetSample(ctx context.Context, s scraper, serving *process.Process, url string, n int, turns bool) (
	is fleetSample, err error,
) {
	is.n = n
	if turns {
		s.resume()
		defer s.pause()
		if err := sleep(ctx, scrapesAgain); err != nil {
			return is, err
		}
	}
	before, err := scrapesOf(ctx, url)
	if err != nil {
		return is, err
	}
	began := time.Now()
	used, err := over(ctx, max(r.rest, leastRest), s.server, serving)
	if err != nil {
		return is, err
	}
	after, err := scrapesOf(ctx, url)
	if err != nil {
		return is, err
	}
	is.cores, is.engines, is.age = used[0], used[1], after.Age
	is.scrapes = float64(after.Scrapes-before.Scrapes) / time.Since(began).Seconds() / float64(n)
	if is.memory, err = memoryOf(s.server.PID()); err != nil {
		return is, err
	}
	if n != fleets[0] && n != fleets[len(fleets)-1] {
		return is, nil
	}
	decided, err := r.decide(ctx, s, "--rate", strconv.Itoa(fleetRate), "--duration", r.rest.String(), "--warmup", "500ms")
	if err != nil {
		return is, err
	}
	after, err = scrapesOf(ctx, url)
	is.p50, is.p99, is.loadedAge = decided.P50*micro, decided.P99*micro, after.Age
	return is, err
}

// scrapesOf returns how the engines at a URL were scraped.
func scrapesOf(ctx context.Context, url string) (is scraped, err error) {
	text, err := get(ctx, url)
	if err != nil {
		return is, err
	}
	return is, json.Unmarshal([]byte(text), &is)
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
