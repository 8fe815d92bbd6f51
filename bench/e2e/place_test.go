package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
)

var placeTime = flag.Duration("place", 15*time.Second, "how long requests for more adapters than there are slots go on")

// placed makes control load these adapters, with at most slots adapters per engine. At the start no
// adapter is loaded.
func placed(t testing.TB, slots int, names ...string) setting {
	return func(c *rig.Config) {
		c.ControlMetrics = strings.TrimSuffix(c.Listen, "1:8080") + "1:9091"
		text := fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: pool}\nspec: {poolRef: {name: pool}, placement: {maxAdapters: %d, source: 'sim:'}}\n", slots)
		if err := os.WriteFile(filepath.Join(c.Objects, "settings.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(c.Objects, "routes.yaml"), []byte(routes(append([]string{baseRoute}, names...)...)),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// numbered returns n adapter names.
func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("b%02d", i)
	}
	return names
}

// engineEvent is one line of a simulated engine's event log.
type engineEvent struct {
	Time                 time.Time
	Engine, Event, Model string
	Error                string
}

// events returns the event logs of all engines, merged by time.
func (s *stack) events() []engineEvent {
	s.t.Helper()
	var all []engineEvent
	for address := range s.Engines {
		all = append(all, s.eventsOf(s.EventLog(address))...)
	}
	slices.SortStableFunc(all, func(a, b engineEvent) int { return a.Time.Compare(b.Time) })
	return all
}

// eventsOf returns one engine's event log.
func (s *stack) eventsOf(file string) (all []engineEvent) {
	s.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e engineEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

// exactlyOnce checks in the engines' event logs that no engine was asked to load a model that it
// already had or was loading, and that no model was being loaded at two engines at once. It returns
// the number of loads.
func (s *stack) exactlyOnce(events []engineEvent) (loads int) {
	s.t.Helper()
	has := make(map[[2]string]bool)
	loading := make(map[string]string) // engine that is loading each model
	for _, e := range events {
		at := [2]string{e.Engine, e.Model}
		switch e.Event {
		case "load":
			loads++
			if has[at] {
				s.t.Errorf("%s is told to load %s, which it has", e.Engine, e.Model)
			}
			if other, ok := loading[e.Model]; ok {
				s.t.Errorf("%s is told to load %s, which %s is loading", e.Engine, e.Model, other)
			}
			loading[e.Model] = e.Engine
		case "loaded":
			delete(loading, e.Model)
			has[at] = e.Error == ""
		case "unload", "unloaded": // a load may end between "unload" and "unloaded"
			has[at] = false
		}
	}
	return loads
}

// modelStatus is the status of a model in control's /models.
type modelStatus struct {
	ID       string
	Copies   []struct{ Endpoint, State string }
	Failures []struct{ Endpoint, Words string }
	Message  string
}

// models reads /models from control.
func (s *stack) models() []modelStatus {
	s.t.Helper()
	var all []modelStatus
	s.get("http://"+s.ControlMetrics+"/models", &all)
	return all
}

// post sends fields as JSON to an engine and returns the status and body of the response.
func (s *stack) post(url string, fields map[string]string) string {
	body, _ := json.Marshal(fields) // cannot fail for strings
	response, err := s.client.Post("http://"+url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return fmt.Sprintf("%d %s", response.StatusCode, text)
}

func (s *stack) get(url string, into any) {
	s.t.Helper()
	response, err := s.client.Get(url)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		s.t.Fatalf("%s: %v", url, err)
	}
}

// listed returns the adapters in the model list of the engine at an address.
func (s *stack) listed(address string) []string {
	s.t.Helper()
	var list struct {
		Data []struct {
			ID     string
			Parent *string
		}
	}
	s.get("http://"+address+"/v1/models", &list)
	var names []string
	for _, m := range list.Data {
		if m.Parent != nil {
			names = append(names, m.ID)
		}
	}
	slices.Sort(names)
	return names
}

// agreed describes a difference between control's state and the engines' model lists, empty if they
// agree.
func (s *stack) agreed() string {
	s.t.Helper()
	return s.agreedWith(slices.Collect(maps.Keys(s.Engines)))
}

func (s *stack) agreedWith(addresses []string) string {
	s.t.Helper()
	believed := make(map[string][]string)
	for _, m := range s.models() {
		for _, c := range m.Copies {
			if c.State != "loaded" {
				return m.ID + " is " + c.State + " at " + c.Endpoint
			}
			believed[c.Endpoint] = append(believed[c.Endpoint], m.ID)
		}
	}
	for _, address := range addresses {
		slices.Sort(believed[address])
		if lists := s.listed(address); !slices.Equal(lists, believed[address]) {
			return fmt.Sprintf("%s lists %v, control believes %v", address, lists, believed[address])
		}
	}
	return ""
}

// zipf returns a function that draws names. The nth name has 1/n the probability of the first.
func zipf(names []string) func(*rand.Rand) string {
	sums := make([]float64, len(names))
	total := 0.0
	for i := range names {
		total += 1 / float64(i+1)
		sums[i] = total
	}
	return func(rng *rand.Rand) string {
		i, _ := slices.BinarySearch(sums, rng.Float64()*total)
		return names[min(i, len(names)-1)]
	}
}

// load sends requests for random names, with the given concurrency, for some time. It returns the
// number of 200 responses. Any other response fails the test.
func (s *stack) load(concurrency int, during time.Duration, names []string) int {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), during)
	defer cancel()
	draw := zipf(names)
	counts := make([]int, concurrency)
	var clients sync.WaitGroup
	for i := range concurrency {
		rng := rand.New(rand.NewPCG(uint64(i), 7))
		clients.Go(func() {
			for ctx.Err() == nil {
				a, err := s.ask(s.t.Context(), completion(draw(rng), 5+rng.IntN(25), rng.IntN(2) == 0))
				switch {
				case err != nil:
					s.t.Error(err)
				case a.status != http.StatusOK, a.stream && !a.done():
					s.t.Errorf("%d %s", a.status, a.body)
				default:
					counts[i]++
				}
			}
		})
	}
	clients.Wait()
	n := 0
	for _, c := range counts {
		n += c
	}
	return n
}

// With 40 adapters and room for 16, every request is answered. A missing adapter is loaded once. An
// unused adapter is unloaded only when another adapter needs its room.
func TestMoreAdaptersThanSlots(t *testing.T) {
	runs(t, alone, raced)
	names := numbered(40)
	s := start(t, placed(t, 4, names...))
	answered := s.load(32, *placeTime, names)
	s.await("control and the engines agree", func() bool { return s.agreed() == "" })
	events := s.events()
	loads := s.exactlyOnce(events)
	if loads < 40 {
		t.Errorf("%d loads for 40 adapters", loads)
	}
	s.await("nobody waits", func() bool { return s.sum(s.ControlMetrics, "headgate_place_queued_requests") == 0 })
	t.Logf("%d requests, %d loads, %.0f evictions", answered, loads, s.sum(s.ControlMetrics, "headgate_place_evictions_total"))
	s.report(events)
}

// report prints two times for each load: from the model's first waiting request to the start of the
// load, and from the end of the load to the first request that was sent to the engine.
func (s *stack) report(events []engineEvent) {
	s.t.Helper()
	for _, m := range []struct{ what, metric string }{
		{"from arrival to the load call, without waits for room or a turn", "headgate_place_load_queue_seconds"},
		{"waits for room or a turn", "headgate_place_stalled_seconds"},
	} {
		s.t.Logf("%s: %s", m.what, s.quantiles(s.ControlMetrics, m.metric))
	}
	if len(events) == 0 {
		return
	}
	dispatched := s.dispatched()
	var took []time.Duration
	for i, e := range events {
		if e.Event != "loaded" || e.Error != "" {
			continue
		}
		until := time.Now()
		for _, later := range events[i+1:] {
			if later.Engine == e.Engine && later.Model == e.Model {
				until = later.Time
				break
			}
		}
		all := dispatched[[2]string{e.Engine, e.Model}]
		// The access log truncates times to milliseconds.
		first, _ := slices.BinarySearchFunc(all, e.Time.Truncate(time.Millisecond), time.Time.Compare)
		if first < len(all) && all[first].Before(until) {
			took = append(took, max(0, all[first].Sub(e.Time)))
		}
	}
	slices.Sort(took)
	if n := len(took); n > 0 {
		s.t.Logf("from the load's answer to the first request sent there: median %v, p99 %v, of %d", took[n/2], took[n*99/100], n)
	}
}

// dispatched returns when requests were sent to engines, by model and engine, from Envoy's access
// log.
func (s *stack) dispatched() map[[2]string][]time.Time {
	s.t.Helper()
	file, err := os.Open(s.Envoy.Log)
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	all := make(map[[2]string][]time.Time)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var entry struct {
			Time         time.Time
			MsToEndpoint int `json:"ms_to_endpoint"`
			Endpoint     string
			Pick         struct{ Model string }
		}
		if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Endpoint != "" {
			at := [2]string{entry.Endpoint, entry.Pick.Model}
			all[at] = append(all[at], entry.Time.Add(time.Duration(entry.MsToEndpoint)*time.Millisecond))
		}
	}
	for _, times := range all {
		slices.SortFunc(times, time.Time.Compare)
	}
	return all
}

// quantiles formats the quantiles of a histogram metric.
func (s *stack) quantiles(address, metric string) string {
	s.t.Helper()
	h := s.histogram(address, metric)
	n := h.GetSampleCount()
	bound := func(q float64) float64 {
		for _, b := range h.GetBucket() {
			if float64(b.GetCumulativeCount()) >= q*float64(n) {
				return b.GetUpperBound()
			}
		}
		return 0
	}
	return fmt.Sprintf("median at most %v s, p99 at most %v s, of %d", bound(.5), bound(.99), n)
}
