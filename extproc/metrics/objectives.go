package metrics

import (
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// objectiveNames are the values of the label objective.
var objectiveNames = map[v1alpha1.ObjectiveType]string{
	v1alpha1.TimeToFirstToken:   "time_to_first_token",
	v1alpha1.OutputTokenLatency: "output_token_latency",
}

// defaultQuantile is the quantile of an objective that states none.
const defaultQuantile = 0.99

// setObjectives puts the objectives of the current routes in force. The caller holds mu.
func (m *Meter) setObjectives(w *objects.World) {
	m.stated = make(map[string][]v1alpha1.Objective)
	m.quantiles.Reset()
	for _, r := range w.Routes {
		if r.Kind != v1alpha1.LLMRouteKind || len(r.Objectives) == 0 {
			continue
		}
		name := r.Name.String()
		m.stated[name] = r.Objectives
		for _, o := range r.Objectives {
			quantile := defaultQuantile
			if q := o.Latency.Quantile; q != nil {
				quantile = float64(q.Numerator) / float64(q.Denominator)
			}
			m.quantiles.WithLabelValues(name, objectiveNames[o.Type]).Set(quantile)
		}
	}
}

// attain counts whether a successful stream met the objectives of its route. Either time is 0 if it
// is unknown. The caller holds mu.
func (m *Meter) attain(route string, firstToken, perToken time.Duration) {
	for _, o := range m.stated[route] {
		took := firstToken
		if o.Type == v1alpha1.OutputTokenLatency {
			took = perToken
		}
		if took <= 0 {
			continue
		}
		result := "met"
		if took > o.Latency.Value.Duration {
			result = "missed"
		}
		m.attained.WithLabelValues(route, objectiveNames[o.Type], result).Inc()
	}
}
