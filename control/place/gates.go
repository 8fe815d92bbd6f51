package place

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
)

// setPods sets the state of the endpoints' pods, including whether a pod will probably be replaced
// soon. The caller holds mu.
func (p *Placer) setPods(now time.Time) {
	out := outgoing(p.world.Engines, now)
	p.rolling = len(out) > 0
	for _, e := range p.world.Engines {
		pod := decide.Pod{Unready: !e.Ready && !e.Terminating, OnTrial: e.OnTrial, Outgoing: out[e.Address]}
		if p.state.SetPod(e.Address, pod) {
			p.endpoints[e.Address].requestScrape()
		}
	}
}

// noteTrials publishes, for each pod on trial, whether models load there. The caller holds mu.
func (p *Placer) noteTrials() {
	trials, uids := make(map[objects.Name][]decide.Trial), make(map[objects.Name]string)
	for _, e := range p.world.Engines {
		if t, onTrial := p.state.Trial(e.Address); onTrial && !e.Listed {
			trials[e.Pod], uids[e.Pod] = append(trials[e.Pod], t), e.UID
		}
	}
	maps.DeleteFunc(p.gates, func(pod objects.Name, _ store.Gate) bool { return trials[pod] == nil })
	for pod, of := range trials {
		gate := gateOf(of)
		gate.Pod, gate.UID = pod, uids[pod]
		if p.gates[pod] == gate {
			continue
		}
		p.gates[pod] = gate
		p.Memory.PutGate(gate)
		switch log := p.Log.With("pod", pod, "why", gate.Message); gate.Reason {
		case v1alpha1.LoadsFail:
			log.Warn("models that are loaded elsewhere cannot be loaded at a new pod, which gets no requests until they can")
		case v1alpha1.ModelsLoaded:
			log.Info("models load at a new pod")
		}
	}
}

// mostFailures is the largest number of a trial's failures that are published.
const mostFailures = 3

// gateOf derives the readiness gate of a pod from the trials of its endpoints.
func gateOf(trials []decide.Trial) store.Gate {
	over, loaded := true, 0
	var failures []string
	for _, t := range trials {
		over = over && t.Passed
		loaded += t.Loaded
		if t.Failed {
			for _, f := range t.Failures[:min(len(t.Failures), mostFailures)] {
				failures = append(failures, fmt.Sprintf("%s: %s", f.ID, f.Message))
			}
		}
	}
	switch {
	case len(failures) > 0:
		return store.Gate{Reason: v1alpha1.LoadsFail, Message: "models that are loaded elsewhere cannot be loaded here: " +
			strings.Join(failures, "; ")}
	case !over:
		return store.Gate{Reason: v1alpha1.ModelsTried, Message: "models that are loaded elsewhere are being loaded here, too"}
	case loaded == 0:
		return store.Gate{Open: true, Reason: v1alpha1.ModelsLoaded, Message: "there was no model to load"}
	}
	return store.Gate{
		Open: true, Reason: v1alpha1.ModelsLoaded,
		Message: fmt.Sprintf("%d models that are loaded elsewhere were loaded here, too", loaded),
	}
}
