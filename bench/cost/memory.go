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
)

const (
	manyRoutes   = 1000
	inFlight     = 1600
	heldRequests = 4000
	atOnce       = 200 // requests that begin together, so that each is decided in time
	// manyEngines is the number of engines behind requests in flight. Each gets less than 32
	// requests, the smallest batch that extproc assumes, so that extproc holds none. Behind held
	// requests is one engine.
	manyEngines = 64
)

// memory measures the memory of an extproc per route and per request of 1 KB.
func (b *bench) memory(ctx context.Context, r *rigs) error {
	t := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "memory of extproc, KB\tper route\tper request in flight\tper queued request\t")
	for _, p := range r.programs() {
		route, err := r.perRoute(ctx, p)
		if err != nil {
			return fmt.Errorf("%s, routes: %w", p.title, err)
		}
		request, err := r.perRequest(ctx, p, false)
		if err != nil {
			return fmt.Errorf("%s, requests in flight: %w", p.title, err)
		}
		held, err := r.perRequest(ctx, p, true)
		if err != nil {
			return fmt.Errorf("%s, queued requests: %w", p.title, err)
		}
		b.report("%s: %.1f KB per route, %.1f KB per request, %.1f KB if queued", p.title, route/1e3, request/1e3, held/1e3)
		fmt.Fprintf(t, "  %s\t%.1f\t%.1f\t%.1f\t\n", p.title, route/1e3, request/1e3, held/1e3)
	}
	t.Flush()
	fmt.Fprintln(b.out)
	return nil
}

// objects returns a pool of the engines and n routes.
func (r *rigs) objects(n int) string {
	var s strings.Builder
	s.WriteString("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: pool}\n" +
		"spec: {selector: {matchLabels: {app: llm}}, targetPorts: [{number: 8000}]}\n")
	for i := range numEngines {
		fmt.Fprintf(&s, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: engine-%d, labels: {app: llm}}\nstatus: {podIP: %s%d}\n",
			i, r.net, 11+i)
	}
	for i := range n {
		fmt.Fprintf(&s, "---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: route-%04d}\nspec:\n"+
			"  backendRefs: [{name: pool}]\n  adapter: {name: adapter-%04[1]d}\n", i)
	}
	return s.String()
}

// perRoute returns the memory of a route in bytes.
func (r *rigs) perRoute(ctx context.Context, p program) (float64, error) {
	var memory [2]float64
	for i, n := range []int{1, 1 + manyRoutes} {
		at, err := r.place("routes", 30)
		if err != nil {
			return 0, err
		}
		objects := filepath.Join(at.dir, "objects")
		if err := os.Mkdir(objects, 0o755); err != nil {
			return 0, err
		}
		if err := os.WriteFile(filepath.Join(objects, "all.yaml"), []byte(r.objects(n)), 0o644); err != nil {
			return 0, err
		}
		server, err := r.startExtproc(ctx, at, p.headgate, append([]string{"--objects", objects}, p.flags...))
		if err == nil {
			err = sleep(ctx, warmScrapes)
		}
		if err == nil {
			memory[i], err = memoryOf(server.PID())
		}
		if server != nil {
			server.Stop(2 * time.Second)
		}
		if err != nil {
			return 0, err
		}
		if err := os.RemoveAll(at.dir); err != nil {
			return 0, err
		}
	}
	return (memory[1] - memory[0]) / manyRoutes, nil
}

// perRequest returns the memory of a request in bytes: of one in flight, whose answer has begun, or
// of one that extproc holds.
func (r *rigs) perRequest(ctx context.Context, p program, held bool) (float64, error) {
	at, err := r.place("flight", 30)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(at.dir)
	engines, requests, flags := manyEngines, inFlight, p.flags
	if held {
		engines, requests, flags = 1, heldRequests, append([]string{"--max-queued", "1000000"}, p.flags...)
	}
	addresses := r.addresses(engines)
	serving, err := r.startEngines(ctx, "memory-engines", pageIdle, addresses)
	if err != nil {
		return 0, err
	}
	defer serving.Stop(time.Second)
	envoyYAML := "envoy.yaml"
	if p.headgate != r.headgate {
		envoyYAML = filepath.Join(r.old, envoyYAML)
	}
	g, err := r.whole(ctx, at, p.headgate, envoyYAML, addresses, flags)
	if g != nil {
		defer g.close()
	}
	if err != nil {
		return 0, err
	}
	one := shape{size: 1 << 10}
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
	for range requests / atOnce {
		c, err := dial(ctx, g.address, atOnce, one)
		if err != nil {
			return 0, err
		}
		defer c.close()
		if err := c.begin(!held); err != nil {
			return 0, err
		}
	}
	for left := patience; ; left -= time.Second {
		if err := sleep(ctx, time.Second); err != nil {
			return 0, err
		}
		n, err := r.held(ctx, at)
		if err != nil {
			return 0, err
		}
		if !held && n == 0 || n > 0.98*heldRequests {
			break
		}
		if left < 0 {
			return 0, fmt.Errorf("extproc holds %v of %d requests: the table would show another thing than it says", n, requests)
		}
	}
	if err := sleep(ctx, warmScrapes); err != nil {
		return 0, err
	}
	after, err := memoryOf(g.server.PID())
	return (after - before) / float64(requests), err
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
