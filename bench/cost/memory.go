package cost

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/internal/process"
)

const (
	manyRoutes   = 1000
	manyModels   = 20_000
	inFlight     = 1600
	heldRequests = 10_000
	atOnce       = 200 // requests that begin together, so that each is decided in time
	// manyEngines is the number of engines behind requests in flight. Each gets less than 32
	// requests, the smallest batch that extproc assumes, so that extproc holds none. Behind held
	// requests is one engine.
	manyEngines = 64
)

// counts are how many objects and requests the part memory has.
type counts struct{ routes, models, inFlight, held int }

// memoryCounts is variable for tests.
var memoryCounts = counts{manyRoutes, manyModels, inFlight, heldRequests}

// requestSize is the size in bytes of the bodies of these requests.
const requestSize = 1 << 10

// memory measures the memory of an extproc per route, per registered model and per request.
func (b *bench) memory(ctx context.Context, r *rigs) error {
	n := memoryCounts
	t := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "memory of extproc, KB\tper route (%d)\tper registered model (%d)\tper request in flight (%d)\tper queued request (%d)\t\n",
		n.routes, n.models, n.inFlight, n.held)
	for _, p := range r.programs() {
		p := p.lean()
		fmt.Fprintf(t, "  %s\t", p.title)
		base, err := r.withObjects(ctx, p, 1, 1)
		if err != nil {
			return fmt.Errorf("%s, one route and one model: %w", p.title, err)
		}
		for _, m := range []struct {
			what    string
			measure func() (float64, error)
		}{
			{"route", func() (float64, error) {
				all, err := r.withObjects(ctx, p, 1+n.routes, 1)
				return (all - base) / float64(n.routes), err
			}},
			{"registered model", func() (float64, error) {
				all, err := r.withObjects(ctx, p, 1, 1+n.models)
				return (all - base) / float64(n.models), err
			}},
			{"request in flight", func() (float64, error) { return r.perRequest(ctx, p, n.inFlight, false) }},
			{"queued request", func() (float64, error) { return r.perRequest(ctx, p, n.held, true) }},
		} {
			is, err := m.measure()
			if err != nil {
				return fmt.Errorf("%s, memory per %s: %w", p.title, m.what, err)
			}
			b.report("%s: %.1f KB per %s", p.title, is/1e3, m.what)
			fmt.Fprintf(t, "%.1f\t", is/1e3)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	fmt.Fprintf(b.out, "\nextproc ran with GOGC=%s, so that garbage hardly counts. Requests have %d bytes; these are not part of a queued request above.\n\n",
		leanGC, requestSize)
	return nil
}

// objectsYAML returns routes and registered models for the endpoints of --endpoints. The first
// route is to their base model. At least one route is needed.
func objectsYAML(routes, models int) string {
	var s strings.Builder
	fmt.Fprintf(&s, "apiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: base}\nspec:\n"+
		"  modelNames: [%s]\n  backendRefs: [{name: endpoints}]\n", modelName)
	for i := 1; i < routes; i++ {
		fmt.Fprintf(&s, "---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: route-%05d}\nspec:\n"+
			"  backendRefs: [{name: endpoints}]\n  adapter: {name: adapter-%05[1]d}\n", i)
	}
	for i := range models {
		fmt.Fprintf(&s, "---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: Model\nmetadata: {name: model-%05d}\nspec:\n"+
			"  poolRef: {name: endpoints}\n  source: /models/model-%05[1]d\n", i)
	}
	return s.String()
}

// startWithObjects starts an extproc for engines with a number of routes and of registered models.
func (r *rigs) startWithObjects(ctx context.Context, at place, p program, engines []string, routes, models int) (*process.Process, error) {
	dir := filepath.Join(at.dir, "objects")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(objectsYAML(routes, models)), 0o644); err != nil {
		return nil, err
	}
	return r.startExtproc(ctx, at, p.with("--objects", dir, "--endpoints", strings.Join(engines, ",")))
}

// withObjects returns the memory in bytes of an extproc with a number of routes and of registered
// models.
func (r *rigs) withObjects(ctx context.Context, p program, routes, models int) (memory float64, err error) {
	at, err := r.place("objects", 30)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(at.dir)
	server, err := r.startWithObjects(ctx, at, p, r.engines, routes, models)
	if server != nil {
		defer server.Stop(2 * time.Second)
	}
	if err != nil {
		return 0, err
	}
	if err := sleep(ctx, warmScrapes); err != nil {
		return 0, err
	}
	return memoryOf(server.PID())
}

// perRequest returns the memory of a request in bytes: of one in flight, whose answer has begun, or
// without its body of one that extproc holds.
func (r *rigs) perRequest(ctx context.Context, p program, requests int, held bool) (float64, error) {
	at, err := r.place("flight", 30)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(at.dir)
	engines, body := manyEngines, 0
	if held {
		engines, body = 1, requestSize
		p = p.with("--max-queued", "1000000")
	}
	addresses := r.addresses(engines)
	serving, err := r.startEngines(ctx, "memory-engines", pageIdle, addresses, "--idle")
	if err != nil {
		return 0, err
	}
	defer serving.Stop(time.Second)
	g, err := r.whole(ctx, at, p, addresses)
	if g != nil {
		defer g.close()
	}
	if err != nil {
		return 0, err
	}
	one := shape{size: requestSize}
	if err := await(ctx, g.address, one, warmUp); err != nil {
		return 0, err
	}
	if err := sleep(ctx, warmScrapes); err != nil {
		return 0, err
	}
	before, err := memoryOf(g.server.PID())
	if err != nil {
		return 0, err
	}
	one.stream, one.hold = true, true
	for begun := 0; begun < requests; {
		n := min(requests-begun, atOnce)
		c, err := dial(ctx, g.address, n, one)
		if err != nil {
			return 0, err
		}
		defer c.close()
		if err := c.begin(!held); err != nil {
			return 0, err
		}
		begun += n
		least, most := 0, 0
		if held {
			least, most = begun-mostRunning, begun
		}
		if err := r.awaitHeld(ctx, at, least, most); err != nil {
			return 0, fmt.Errorf("after %d requests: %w", begun, err)
		}
	}
	if err := sleep(ctx, warmScrapes); err != nil {
		return 0, err
	}
	after, err := memoryOf(g.server.PID())
	return (after-before)/float64(requests) - float64(body), err
}

// mostRunning is the most requests that extproc lets into one engine before it holds others.
const mostRunning = 80

// awaitHeld waits until an extproc holds a number of requests.
func (r *rigs) awaitHeld(ctx context.Context, at place, least, most int) error {
	for began := time.Now(); ; {
		n, err := r.held(ctx, at)
		if err != nil {
			return err
		}
		if n >= float64(least) && n <= float64(most) {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("extproc holds %v requests, want %d to %d: the table would show another thing than it says", n, least, most)
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// held returns the number of requests that an extproc holds.
func (r *rigs) held(ctx context.Context, at place) (float64, error) {
	page, err := get(ctx, "http://"+at.metrics+"/metrics")
	return sum(page, "headgate_band_held_requests"), err
}

// get returns what a URL answers.
func get(ctx context.Context, url string) (string, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	client := http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Do(q)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// sum returns the sum of the values of a metric in a page.
func sum(page, metric string) (all float64) {
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(line, metric+"{")
		if !ok {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
		if err == nil {
			all += value
		}
	}
	return all
}
