package quickstart

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/headgate/headgate/bench/rig"
	"github.com/headgate/headgate/internal/engine"
)

// watch reads every engine's metrics and tells what happened since it last did.
type watch struct {
	control   string // where its metrics are
	endpoints []string
	names     []string // of their pods, or their addresses where a pod has several
	client    http.Client

	requests, tokens float64 // of all engines at the last reading
	loads, evictions float64 // by control, at the last reading
	read             time.Time
}

func newWatch(r *rig.Rig) *watch {
	w := r.World()
	pods := make(map[string]string)
	ports := make(map[string]int)
	for _, p := range w.Pools {
		for _, e := range p.Endpoints {
			if _, seen := pods[e.Address]; !seen {
				pods[e.Address] = e.Pod.Name
				ports[e.Pod.Name]++
			}
		}
	}
	v := &watch{control: r.ControlMetrics, endpoints: w.Addresses(), client: http.Client{Timeout: 500 * time.Millisecond}, read: time.Now()}
	for _, address := range v.endpoints {
		name := pods[address]
		if ports[name] > 1 {
			name = address
		}
		v.names = append(v.names, name)
	}
	return v
}

// reading is what one engine says.
type reading struct {
	err              error
	load             engine.Load
	requests, tokens float64
	// used is the adapters in slots of all slots. vLLM tells its slots once it used one, and its activity only.
	used, slots engine.Value
}

// line is one second, for people.
func (w *watch) line(ctx context.Context) string {
	readings := make([]reading, len(w.endpoints))
	var reads sync.WaitGroup
	for i, address := range w.endpoints {
		reads.Go(func() { readings[i] = w.look(ctx, address) })
	}
	reads.Wait()

	now := time.Now()
	var requests, tokens float64
	var engines strings.Builder
	for i, r := range readings {
		requests += r.requests
		tokens += r.tokens
		fmt.Fprintf(&engines, " | %s %s", w.names[i], r)
	}
	placing := w.placing(ctx)
	seconds := now.Sub(w.read).Seconds()
	rate := func(now, before float64) float64 { return max(0, now-before) / seconds } // an engine that restarted counts anew
	line := fmt.Sprintf("%s %4.0f req/s %5.0f tok/s%s%s", now.Format("15:04:05"), rate(requests, w.requests), rate(tokens, w.tokens), placing, engines.String())
	w.requests, w.tokens, w.read = requests, tokens, now
	return line
}

// placing is what control did since the last line, and how many requests are held for models now.
func (w *watch) placing(ctx context.Context) string {
	families, _, err := w.page(ctx, w.control)
	if err != nil {
		return " | control does not answer"
	}
	loads, evictions := 0.0, sum(families, "headgate_place_evictions_total").Or(0)
	for _, m := range families["headgate_place_load_seconds"].GetMetric() {
		loads += float64(m.GetHistogram().GetSampleCount())
	}
	line := fmt.Sprintf(" | %3.0f held %2.0f loads %2.0f evictions", sum(families, "headgate_place_held_requests").Or(0),
		max(0, loads-w.loads), max(0, evictions-w.evictions))
	w.loads, w.evictions = loads, evictions
	return line
}

func (r reading) String() string {
	if r.err != nil {
		return "does not answer"
	}
	return fmt.Sprintf("%3.0f+%-3.0f %s", r.load.Running.Or(0), r.load.Waiting.Or(0), r.slotPicture())
}

// maxDots is how many slots are drawn; more are counted.
const maxDots = 8

// slotPicture draws a dot for each slot, full where it is taken.
func (r reading) slotPicture() string {
	slots, known := r.slots.Get()
	used := r.used.Or(0)
	switch {
	case !known:
		return "-"
	case slots > maxDots || used > slots:
		return fmt.Sprintf("%.0f/%.0f", used, slots)
	}
	return strings.Repeat("●", int(used)) + strings.Repeat("○", int(slots-used))
}

// page reads a metrics page.
func (w *watch) page(ctx context.Context, address string) (families map[string]*dto.MetricFamily, text []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, nil, err
	}
	response, err := w.client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(response.Body); err != nil {
		return nil, nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err = parser.TextToMetricFamilies(bytes.NewReader(text))
	return families, text, err
}

// sum adds up the series of a metric; unknown if there are none.
func sum(families map[string]*dto.MetricFamily, name string) (total engine.Value) {
	for _, m := range families[name].GetMetric() {
		total = engine.Known(total.Or(0) + m.GetCounter().GetValue() + m.GetGauge().GetValue())
	}
	return total
}

func (w *watch) look(ctx context.Context, address string) (r reading) {
	families, page, err := w.page(ctx, address)
	if err != nil {
		return reading{err: err}
	}
	var reader engine.Reader
	if r.load, err = reader.Load(page, ""); err != nil {
		return reading{err: err}
	}
	r.requests, r.tokens = sum(families, "vllm:request_success_total").Or(0), sum(families, "vllm:generation_tokens_total").Or(0)
	if r.used, r.slots = sum(families, "sim:slots_used"), sum(families, "sim:slots"); r.slots == (engine.Value{}) {
		r.used, r.slots = engine.Known(float64(len(r.load.Active))), r.load.MaxAdapters
	}
	return r
}
