package cost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/bench/ext"
)

// setting is what an extproc has, for decisions.
type setting struct{ endpoints, routes, models int }

// decisionCell is a load of "bench ext".
type decisionCell struct{ size, atOnce int }

// decisionGroup is a setting and its loads.
type decisionGroup struct {
	setting
	loads []decisionCell
	short bool // --short has it
}

// decisionGroups are all settings. From one load and one setting, one number at a time changes; at
// the end each is at its highest.
var decisionGroups = []decisionGroup{
	{setting{8, 1, 1}, []decisionCell{{1 << 10, 16}, {1 << 10, 1}, {1 << 10, 256}, {16 << 10, 16}, {100 << 10, 16}, {256 << 10, 16}}, true},
	{setting{64, 1, 1}, []decisionCell{{1 << 10, 16}}, false},
	{setting{1000, 1, 1}, []decisionCell{{1 << 10, 16}}, true},
	{setting{8, 1000, 1}, []decisionCell{{1 << 10, 16}}, false},
	{setting{8, 10_000, 1}, []decisionCell{{1 << 10, 16}}, true},
	{setting{8, 1, 20_000}, []decisionCell{{1 << 10, 16}}, true},
	{setting{1000, 10_000, 20_000}, []decisionCell{{1 << 10, 16}, {256 << 10, 256}}, false},
}

// decision has the figures of one load in one round: times in seconds.
type decision struct {
	cpu       float64 // per request, without what the process uses when idle
	p50, p99  float64
	rate      float64 // requests per second
	idleCores float64
}

// decisionOf returns the figures of a result of a process that uses some cores when idle.
func decisionOf(is ext.Result, idle float64) decision {
	return decision{is.CPU*micro - idle/is.PerSecond, is.P50 * micro, is.P99 * micro, is.PerSecond, idle}
}

var decisionColumns = []column[decision]{
	{"server, µs", "%.0f", micro, func(d decision) float64 { return d.cpu }},
	{"p50, ms", "%.2f", milli, func(d decision) float64 { return d.p50 }},
	{"p99, ms", "%.2f", milli, func(d decision) float64 { return d.p99 }},
	{"decisions/s", "%.0f", 1, func(d decision) float64 { return d.rate }},
	{"idle (subtracted), cores", "%.3f", 1, func(d decision) float64 { return d.idleCores }},
}

// decisions measures decisions without Envoy: what they cost with larger bodies, with more requests
// at a time, and with more endpoints, routes and models.
func (b *bench) decisions(ctx context.Context, r *rigs) error {
	rounds := min(b.rounds, 2)
	if b.short {
		rounds = 1
	}
	t := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "decisions without Envoy\tKB\tat a time\tendpoints\troutes\tmodels\t")
	for _, c := range decisionColumns {
		fmt.Fprintf(t, "%s\t", c.name)
	}
	fmt.Fprintln(t)
	for i, group := range decisionGroups {
		if b.short && !group.short {
			continue
		}
		all, err := r.withSetting(ctx, group.setting, group.loads, rounds)
		if err != nil {
			return fmt.Errorf("%+v: %w", group.setting, err)
		}
		decisionRows(t, "extproc", group.setting, group.loads, all)
		if i > 0 {
			continue
		}
		if all, err = r.withRawNoop(ctx, group.loads, rounds); err != nil {
			return fmt.Errorf("no-op: %w", err)
		}
		decisionRows(t, "no-op", setting{}, group.loads, all)
	}
	t.Flush()
	fmt.Fprintf(b.out, "\nMedians of %d rounds.\n\n", rounds)
	return nil
}

// decisionRows prints the figures of each load.
func decisionRows(t *tabwriter.Writer, title string, s setting, loads []decisionCell, all [][]decision) {
	number := func(n int) string {
		if n == 0 {
			return "–"
		}
		return strconv.Itoa(n)
	}
	for i, load := range loads {
		fmt.Fprintf(t, "  %s\t%d\t%d\t%s\t%s\t%s\t", title, load.size>>10, load.atOnce, number(s.endpoints), number(s.routes), number(s.models))
		for _, c := range decisionColumns {
			fmt.Fprintf(t, "%s\t", spreadOf(figures(all[i], c.of)).text(c.format, c.unit))
		}
		fmt.Fprintln(t)
	}
}

// withSetting starts an extproc, and returns the figures of each load in each round. Its engines
// are busy, so that it scrapes them as often while it gets requests as before.
func (r *rigs) withSetting(ctx context.Context, s setting, loads []decisionCell, rounds int) ([][]decision, error) {
	addresses := r.addresses(s.endpoints)
	serving, err := r.startEngines(ctx, "decisions", pageLoaded, addresses, "--small-page")
	if err != nil {
		return nil, err
	}
	defer serving.Stop(time.Second)
	at, err := r.place("decisions", 30)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(at.dir)
	server, err := r.startWithObjects(ctx, at, r.current(), addresses, s.routes, s.models)
	if server != nil {
		defer server.Stop(2 * time.Second)
	}
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, warmScrapes); err != nil {
		return nil, err
	}
	return r.loads(ctx, scraper{&gateway{server: server}, at}, loads, rounds)
}

// withRawNoop is withSetting for the no-op on raw bytes.
func (r *rigs) withRawNoop(ctx context.Context, loads []decisionCell, rounds int) ([][]decision, error) {
	at, err := r.place("decisions", 30)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(at.dir)
	server, err := r.startNoop(ctx, at)
	if server != nil {
		defer server.Stop(time.Second)
	}
	if err != nil {
		return nil, err
	}
	return r.loads(ctx, scraper{&gateway{server: server}, at}, loads, rounds)
}

// loads measures a server with each load in each round.
func (r *rigs) loads(ctx context.Context, s scraper, loads []decisionCell, rounds int) ([][]decision, error) {
	all := make([][]decision, len(loads))
	idle, err := over(ctx, r.rest, s.server)
	if err != nil {
		return nil, err
	}
	for range rounds {
		for i, load := range loads {
			is, err := r.decide(ctx, s, "--body", strconv.Itoa(load.size), "--concurrency", strconv.Itoa(load.atOnce),
				"--duration", (r.rest * 2 / 3).String(), "--warmup", "300ms")
			if err != nil {
				return nil, fmt.Errorf("%d KB, %d at a time: %w", load.size>>10, load.atOnce, err)
			}
			all[i] = append(all[i], decisionOf(is, idle[0]))
			r.report("decisions of %s, %d KB, %d at a time: %.0f µs", s.server.Name, load.size>>10, load.atOnce, is.CPU)
		}
	}
	return all, nil
}

// decide sends requests to a server as Envoy does, by "bench ext" with these flags.
func (r *rigs) decide(ctx context.Context, s scraper, flags ...string) (is ext.Result, err error) {
	text, err := r.ext(ctx, s, append(flags, "--json")...)
	if err != nil {
		return is, err
	}
	return is, json.Unmarshal(text, &is)
}

// ext runs "bench ext" for a server, and returns what it prints.
func (r *rigs) ext(ctx context.Context, s scraper, flags ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, r.self, append([]string{
		"ext", "--target", "unix:" + s.at.socket(), "--model", modelName, "--pid", strconv.Itoa(s.server.PID()), "--records",
	}, flags...)...)
	text, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("bench ext: %w: %s", err, failed.Stderr)
	}
	return text, err
}

// shapeEndpoints is the number of endpoints of the shape of llm-d. The shape is sent for shapeTime,
// which is variable for tests.
const shapeEndpoints = 100

var shapeTime = time.Minute

// shape sends the load for which llm-d has published what its picker costs.
func (b *bench) shape(ctx context.Context, r *rigs) error {
	addresses := r.addresses(shapeEndpoints)
	serving, err := r.startEngines(ctx, "shape", pageLoaded, addresses)
	if err != nil {
		return err
	}
	defer serving.Stop(time.Second)
	at, err := r.place("shape", 30)
	if err != nil {
		return err
	}
	defer os.RemoveAll(at.dir)
	server, err := r.startExtproc(ctx, at, r.current().with("--endpoints", strings.Join(addresses, ",")))
	if server != nil {
		defer server.Stop(2 * time.Second)
	}
	if err != nil {
		return err
	}
	if err := sleep(ctx, warmScrapes); err != nil {
		return err
	}
	wall := shapeTime
	if b.short {
		wall /= shorter
	}
	b.report("bench ext --shape llm-d, %d endpoints, %v", shapeEndpoints, wall)
	text, err := r.ext(ctx, scraper{&gateway{server: server}, at}, "--shape", "llm-d", "--duration", wall.String())
	if err != nil {
		return err
	}
	fmt.Fprintf(b.out, "bench ext --shape llm-d, to extproc without Envoy, %d busy endpoints with a page of 82 KB\n", shapeEndpoints)
	for line := range strings.Lines(string(text)) {
		fmt.Fprintf(b.out, "  %s", line)
	}
	fmt.Fprintln(b.out)
	return nil
}
