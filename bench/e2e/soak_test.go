package e2e

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
)

var (
	soakTime = flag.Duration("soak", time.Minute, "how long the soak lasts")
	soakSeed = flag.Uint64("soak-seed", 0, "repeats the script and the requests of a soak; 0 takes a seed of the clock")
)

const (
	soakClients = 28
	// soakSilence is Envoy's idle timeout in the soak. It ends requests that hang while the test
	// still runs.
	soakSilence = 10 * time.Second
	// soakPatience is the client's timeout. It is the idle timeout three times: once before the
	// response, once within it, and once for a busy machine.
	soakPatience = 3 * soakSilence
	// soakProfile makes engines slow, so that two cores have CPU time for everything else.
	soakProfile = `name: steady
prefill: {base: 0.005, perToken: 0.00001}
decode: {base: 0.015, perSequence: 0.00002, perKVToken: 0}
adapterLoad: {mean: 0.02}
adapterActivation: {mean: 0.02}
limits: {maxSequences: 64, maxBatchedTokens: 8192, kvBlocks: 8192, blockSize: 16, gpuAdapters: 4, hostAdapters: 12}
`
)

// soak is a stack under load while everything around the gateway fails, one component at a time.
type soak struct {
	*stack
	seed   uint64
	began  time.Time
	length time.Duration

	rigging sync.Mutex // guards the rig while the soak starts or stops processes
	invalid sync.Mutex // held while a file is invalid, and while extproc starts, which fails with an invalid file
	book    book
	tally   tally
}

// Whatever fails around the gateway, each request ends in time, with a result that the faults at
// that time explain. When everything has recovered, no state is left behind.
func TestSoak(t *testing.T) {
	runs(t)
	s := startSoak(t)
	s.warm()
	rest := s.goroutines(s.Metrics)

	s.began = time.Now()
	stopLoad := s.load()
	scripted, end := context.WithCancel(t.Context())
	defer end()
	var lanes sync.WaitGroup
	lanes.Go(func() { s.engineLane(scripted, 1, 1, 2) })
	lanes.Go(func() { s.engineLane(scripted, 2, 3, 4) })
	lanes.Go(func() { s.objectLane(scripted) })
	measured, stopMeasuring := context.WithCancel(t.Context())
	samples := make(chan []sample, 1)
	go func() { samples <- s.measure(measured) }()
	last := s.restartExtproc(scripted)
	pause(scripted, s.remaining(time.Now(), last))
	end()
	lanes.Wait()
	stopMeasuring()
	stopLoad()

	s.judge()
	s.leftNothing(rest)
	s.grewLittle(slices.DeleteFunc(<-samples, func(p sample) bool { return p.at.Before(last) }))
	after := s.goroutines(s.Metrics)
	s.Envoy.Stop(5 * time.Second) // Envoy flushes its log when it stops
	s.summary(rest, after)
}

// remaining returns how long the script must still run. It runs for the length of the soak, and
// until the last extproc, whose memory is measured, has run for three fifths of that length. The
// last restart may be late, because each restart waits until requests are answered again.
func (s *soak) remaining(now, last time.Time) time.Duration {
	return max(s.began.Add(s.length).Sub(now), last.Add(s.length*3/5).Sub(now))
}

func startSoak(t *testing.T) *soak {
	s := &soak{seed: cmp.Or(*soakSeed, uint64(time.Now().UnixNano())), length: *soakTime}
	s.tally.count = make(map[string]int)
	t.Logf("go test -race ./bench/e2e -run '^TestSoak$' -soak %v -soak-seed %d repeats this", s.length, s.seed)
	file := filepath.Join(t.TempDir(), "soak.yaml")
	if err := os.WriteFile(file, []byte(soakProfile), 0o644); err != nil {
		t.Fatal(err)
	}
	s.stack = start(t, engineFlags("--profile", file, "--shutdown-timeout", "15"), func(c *rig.Config) {
		silence := fmt.Sprintf("%gs", soakSilence.Seconds())
		// The policy, and with it the prefix table, is switched on and off. The table is small
		// here, so that growing memory means a leak.
		c.ExtprocFlags = append(c.ExtprocFlags, "--prefix-cache-bytes", strconv.Itoa(1<<20))
		c.EnvoyChanges = append(c.EnvoyChanges,
			replaceEverywhere("idle_timeout", "600s", silence), replaceEverywhere("stream_idle_timeout", "600s", silence))
		// The fifth engine is in an EndpointList, which is added to the pool and removed.
		net := strings.TrimSuffix(c.Listen, "1:8080")
		spare := strings.NewReplacer("name: pool}", "name: spare}", "app: llama", "app: spare", "engine-11", "engine-15", net+"11", net+
			"15").Replace(engines(net, 1))
		if err := os.WriteFile(filepath.Join(c.Objects, "spare.yaml"), []byte(spare), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	return s
}

// warm opens as many connections as the load will need, and waits until everything is idle.
func (s *soak) warm() {
	var clients sync.WaitGroup
	for client := range 2 * soakClients {
		clients.Go(func() {
			for n := range 5 {
				if a, err := s.ask(s.t.Context(), completion(adapters[(client+n)%len(adapters)], 20, n%2 == 0)); err != nil ||
					a.status != 200 {
					s.t.Errorf("before any trouble: %d, %v", a.status, err)
				}
			}
		})
	}
	clients.Wait()
	s.await("every request is counted as gone", func() bool { return s.inFlight() == 0 })
}

// leftNothing checks that the load and the faults have left nothing behind in any count. rest is
// the number of goroutines before the load.
func (s *soak) leftNothing(rest float64) {
	s.t.Helper()
	s.await("every engine is healthy", func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_state", "state", "healthy") == float64(len(s.Engines))
	})
	s.await("every request is counted as gone", func() bool {
		return s.inFlight() == 0 && s.sum(s.Metrics, "headgate_requests_in_flight") == 0
	})
	if n := s.modelsInFlight(); n != 0 {
		s.t.Errorf("%v models are counted still:\n%s", n, s.page(s.Metrics))
	}
	if n := s.sum(s.Metrics, "headgate_requests_in_flight_expired_total"); n != 0 {
		s.t.Errorf("%v leases ran out, where the end of each request is the end of its stream", n)
	}
	s.await("the engines have nothing left", func() bool {
		return s.engineSum("vllm:num_requests_running")+s.engineSum("vllm:num_requests_waiting") == 0
	})
	for _, gauge := range []string{
		"http.ingress.downstream_rq_active", "cluster.endpoints.upstream_rq_active",
		"cluster.endpoints.upstream_rq_pending_active",
	} {
		s.await("Envoy's "+gauge+" is 0", func() bool { return s.envoyGauge(gauge) == 0 })
	}
	// A program that restarts reopens connections. Each connection has two or three goroutines.
	const slack = 8
	s.await(fmt.Sprintf("extproc has about the %v goroutines that it had at rest", rest), func() bool {
		return s.goroutines(s.Metrics) <= rest+slack
	})
}

// sample is the memory that extproc uses at one time.
type sample struct {
	at        time.Time
	rss, heap float64 // both in MiB
}

// measure samples extproc's memory every half second until ctx ends.
func (s *soak) measure(ctx context.Context) (all []sample) {
	const mebi = 1 << 20
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return all
		case at := <-tick.C:
			rss, err := s.value(s.Metrics, "process_resident_memory_bytes")
			heap, err2 := s.value(s.Metrics, "go_memstats_heap_alloc_bytes")
			if err == nil && err2 == nil {
				all = append(all, sample{at, rss / mebi, heap / mebi})
			}
		}
	}
}

// grewLittle compares the memory of the last extproc between the first and the second half of its
// life. RSS includes memory that the garbage collector has not returned and, under the race
// detector, shadow memory for every page ever touched. The median of RSS may grow by a quarter plus
// 32 MiB. The live heap is roughly the smallest sample, which is taken just after a collection, and
// is 4 to 6 MiB here. It may grow by half plus 4 MiB. In ten minutes that is a KiB per request,
// which is less than a leaked stream, lease or goroutine.
func (s *soak) grewLittle(life []sample) {
	s.t.Helper()
	if len(life) < 20 {
		s.t.Fatalf("extproc was measured %d times only", len(life))
	}
	rss := func(p sample) float64 { return p.rss }
	heap := func(p sample) float64 { return p.heap }
	sorted := func(half []sample, of func(sample) float64) (values []float64) {
		for _, p := range half {
			values = append(values, of(p))
		}
		slices.Sort(values)
		return values
	}
	first, second := life[:len(life)/2], life[len(life)/2:]
	r1, r2 := sorted(first, rss)[len(first)/2], sorted(second, rss)[len(second)/2]
	h1, h2 := sorted(first, heap)[0], sorted(second, heap)[0]
	s.t.Logf("extproc over %v: median RSS %.1f, then %.1f MiB; least heap %.2f, then %.2f MiB",
		life[len(life)-1].at.Sub(life[0].at).Round(time.Second), r1, r2, h1, h2)
	if r2 > r1*1.25+32 {
		s.t.Errorf("extproc's RSS grew from %.1f to %.1f MiB", r1, r2)
	}
	if h2 > h1*1.5+4 {
		s.t.Errorf("extproc's heap grew from %.2f to %.2f MiB", h1, h2)
	}
}

// value adds up the series of a metric, like sum. It returns an error if the program does not
// answer.
func (s *soak) value(address, metric string, labels ...string) (float64, error) {
	response, err := s.client.Get("http://" + address + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	return total(response.Body, metric, labels...)
}

// summary logs the figures of the run.
func (s *soak) summary(rest, end float64) {
	s.t.Helper()
	sentOn, retries := 0, 0
	details := make(map[string]int)
	for _, l := range s.accessLog(func(logged) bool { return true }) {
		details[fmt.Sprintf("%d %s %s", l.Status, l.Flags, l.Details)]++
		if l.Attempts > 1 {
			sentOn++
			retries += l.Attempts - 1
		}
	}
	list := func(count map[string]int) string {
		var lines []string
		for _, key := range slices.Sorted(maps.Keys(count)) {
			lines = append(lines, fmt.Sprintf("%s %d", key, count[key]))
		}
		return strings.Join(lines, ", ")
	}
	s.t.Logf("%d requests in %v: %s", s.tally.total, time.Since(s.began).Round(time.Second), list(s.tally.count))
	s.t.Logf("%d requests were sent on to another pick, %d times; goroutines %v at rest, %v at the end", sentOn, retries, rest, end)
	s.t.Logf("in Envoy's words: %s", list(details))
	s.t.Logf("troubles: %s", list(s.book.counts()))
}
