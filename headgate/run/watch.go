package run

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// watch reads the metrics of all programs. It learns the engines' addresses from extproc's metrics.
type watch struct {
	rig    *rig.Rig
	client http.Client
	names  map[string]string // names of endpoints, by address
	memory memory
}

func newWatch(r *rig.Rig) *watch {
	return &watch{rig: r, client: http.Client{Timeout: 500 * time.Millisecond}}
}

// line reads all metrics and returns the console's line for this second.
func (w *watch) line(ctx context.Context) string {
	var text string
	text, w.memory = w.memory.line(w.read(ctx), w.rig.ControlMetrics != "")
	return text
}

// read reads the metrics of all programs. The engine of a new endpoint is read in the same call.
func (w *watch) read(ctx context.Context) reading {
	r := reading{engines: make(map[string]engineReading)}
	var reads sync.WaitGroup
	reads.Go(func() { r.extproc = w.extproc(ctx) })
	if w.rig.ControlMetrics != "" {
		reads.Go(func() { r.control = w.control(ctx) })
	}
	reads.Wait()

	known := w.memory.extproc
	if r.extproc != nil {
		known = r.extproc
	}
	if known != nil {
		w.name(known.endpoints)
		answers := make([]*engineReading, len(known.endpoints))
		for i, e := range known.endpoints {
			reads.Go(func() { answers[i] = w.engine(ctx, e.address) })
		}
		reads.Wait()
		for i, answer := range answers {
			if answer != nil {
				r.engines[known.endpoints[i].address] = *answer
			}
		}
	}
	r.at, r.names = time.Now(), w.names
	return r
}

// name reads the objects again if an endpoint has no name, because an edit must have added it. It
// names an endpoint that is not a pod by its address.
func (w *watch) name(endpoints []endpoint) {
	if w.rig.Objects == "" || !slices.ContainsFunc(endpoints, func(e endpoint) bool { return w.names[e.address] == "" }) {
		return
	}
	set, err := dir.Read(w.rig.Objects, kinds.WithNetwork())
	if err != nil {
		return // an edit is invalid; extproc reports it
	}
	w.names = namesOf(set)
	for _, e := range endpoints {
		w.names[e.address] = cmp.Or(w.names[e.address], e.address)
	}
}

// namesOf returns the names of the pods that have only one endpoint, by the endpoint's address.
func namesOf(set objects.Set) map[string]string {
	endpoints := make(map[objects.Name][]string) // addresses of each pod's endpoints
	for _, p := range set.Pods {
		endpoints[p.Name] = nil
	}
	for _, p := range objects.Build(set).Pools {
		for _, e := range p.Endpoints {
			if all, pod := endpoints[e.Pod]; pod && !slices.Contains(all, e.Address) {
				endpoints[e.Pod] = append(all, e.Address)
			}
		}
	}
	names := make(map[string]string)
	for pod, all := range endpoints {
		if len(all) == 1 {
			names[all[0]] = pod.Name
		}
	}
	return names
}

// extproc returns extproc's metrics, nil if extproc does not answer.
func (w *watch) extproc(ctx context.Context) *extprocReading {
	families, _, err := w.page(ctx, w.rig.Metrics)
	if err != nil {
		return nil
	}
	all := make(map[string]*endpoint)
	for _, m := range families["headgate_endpoint_state"].GetMetric() {
		if address := label(m, "endpoint"); m.GetGauge().GetValue() == 1 {
			all[address] = &endpoint{address: address, state: label(m, "state")}
		}
	}
	for name, value := range map[string]func(*endpoint) *engine.Value{
		"headgate_endpoint_running":        func(e *endpoint) *engine.Value { return &e.running },
		"headgate_endpoint_waiting":        func(e *endpoint) *engine.Value { return &e.waiting },
		"headgate_endpoint_requests_total": func(e *endpoint) *engine.Value { return &e.requests },
	} {
		for _, m := range families[name].GetMetric() {
			if e := all[label(m, "endpoint")]; e != nil {
				*value(e) = engine.Known(m.GetGauge().GetValue() + m.GetCounter().GetValue())
			}
		}
	}
	r := &extprocReading{
		at: time.Now(), started: sum(families, "process_start_time_seconds"),
		refused: sum(families, "headgate_objects_rejected_files").Or(0),
		tokens:  sum(families, "headgate_tokens_total", "kind", "completion"),
		held:    sum(families, "headgate_pool_held_requests").Or(0),
	}
	for _, address := range slices.Sorted(maps.Keys(all)) {
		r.endpoints = append(r.endpoints, *all[address])
	}
	return r
}

// control returns control's metrics, nil if control does not answer.
func (w *watch) control(ctx context.Context) *controlReading {
	families, _, err := w.page(ctx, w.rig.ControlMetrics)
	if err != nil {
		return nil
	}
	r := &controlReading{
		started:   sum(families, "process_start_time_seconds"),
		evictions: sum(families, "headgate_place_evictions_total").Or(0),
	}
	for _, m := range families["headgate_place_load_seconds"].GetMetric() {
		r.loads += float64(m.GetHistogram().GetSampleCount())
	}
	return r
}

// engine returns an engine's metrics, nil if the engine has none or does not answer.
func (w *watch) engine(ctx context.Context, address string) *engineReading {
	families, page, err := w.page(ctx, address)
	if err != nil {
		return nil
	}
	r := &engineReading{at: time.Now()}
	var reader engine.Reader
	if r.load, err = reader.Load(page, ""); err != nil {
		return nil
	}
	r.requests, r.tokens = sum(families, "vllm:request_success_total"), sum(families, "vllm:generation_tokens_total")
	// vLLM reports slots only after it has used one, and then only activity. Simulated engines also
	// export their own metrics of slots.
	if r.used, r.slots = sum(families, "sim:slots_used"), sum(families, "sim:slots"); r.slots == (engine.Value{}) {
		r.used, r.slots = engine.Known(float64(len(r.load.Active))), r.load.MaxAdapters
	}
	return r
}

// page reads the metrics page at an address and returns it parsed and as text.
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
	if response.StatusCode != http.StatusOK {
		return nil, nil, errors.New(response.Status)
	}
	if text, err = io.ReadAll(response.Body); err != nil {
		return nil, nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err = parser.TextToMetricFamilies(bytes.NewReader(text))
	return families, text, err
}

// sum adds up the series of a metric that have the given labels (name, value, name, value). The
// result is unknown if there is no such series.
func sum(families map[string]*dto.MetricFamily, name string, labels ...string) (total engine.Value) {
series:
	for _, m := range families[name].GetMetric() {
		for i := 0; i < len(labels); i += 2 {
			if label(m, labels[i]) != labels[i+1] {
				continue series
			}
		}
		total = engine.Known(total.Or(0) + m.GetCounter().GetValue() + m.GetGauge().GetValue())
	}
	return total
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
