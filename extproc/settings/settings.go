// Package settings determines how the requests of a pool are treated. extproc's flags are the
// defaults, and a pool's PoolSettings overrides them. It is pure.
package settings

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// Settings are complete settings: every field has its effective value.
type Settings struct {
	Policy pick.Policy
	// EndpointsPerRequest is the number of endpoints in a decision: the first one, and those for
	// retries, in order. It is at least 1.
	EndpointsPerRequest int
	// FinalUnavailable means that the answers UNAVAILABLE, and 503 without Retry-After, are sent to
	// the client and not retried at another endpoint.
	FinalUnavailable bool
	// AffinityHeader and AffinityCookie are the names of a header and a cookie that identify a
	// session; at most one of the two is set.
	AffinityHeader, AffinityCookie string
	// DefaultModel is the model for requests that name none, with the name that clients use. If it
	// is empty, such requests are rejected.
	DefaultModel string
	// Request is the maximum duration of a request; with 0 the data plane decides.
	Request time.Duration
	// QueueTimeout is the maximum time for which a request waits until its model is loaded or an
	// endpoint has room.
	QueueTimeout time.Duration
	// EmptyTimeout is the maximum time for which a request waits while no endpoint of the pool may
	// get requests. With 0 it does not wait.
	EmptyTimeout time.Duration
	// Flow means that requests wait in a fair queue while endpoints have no room for them. If it is
	// false, they are sent at once.
	Flow bool
	// RequestsPerEndpoint limits the requests in flight at an endpoint whose engine reports no load
	// while predictions are not trusted; 0 means no limit.
	RequestsPerEndpoint int
	// InFlightTimeout is how long a request is counted as in flight if nothing reports its end.
	InFlightTimeout time.Duration
	// StaleAfter and LostAfter are durations of an endpoint's silence, counted from when the first
	// unanswered scrape was due. After StaleAfter, it gets only requests that no other endpoint can
	// serve. After LostAfter, it gets requests only if every endpoint is silent.
	StaleAfter, LostAfter time.Duration
}

// DefaultQueueTimeout is enough to wait in a load queue and then load the largest adapters from a
// slow disk. The data plane must wait as long: max_message_timeout in envoy.yaml.
const DefaultQueueTimeout = 5 * time.Minute

// Default returns the settings that apply if nothing else is configured.
func Default() Settings {
	return Settings{
		Policy:              pick.Policy{Rule: pick.Latency, Threshold: pick.DefaultThreshold},
		EndpointsPerRequest: 1,
		QueueTimeout:        DefaultQueueTimeout,
		Flow:                true,
		// Engines report the number of their running requests. If a lease ends too early, the next
		// scrape counts the request as load from other sources. So a lease may be much shorter than
		// the longest answer.
		InFlightTimeout: time.Minute,
		// The duration of five scrapes at the default interval. A busy vLLM may not answer one or
		// two, because one process answers both requests and scrapes.
		StaleAfter: time.Second,
		// A vLLM that hangs after SIGTERM is silent while its port remains open (observed with
		// 0.32.0).
		LostAfter: 10 * time.Second,
	}
}

// For returns s with the overrides of a pool's PoolSettings; p may be nil.
func (s Settings) For(p *objects.Pool) Settings {
	if p == nil || p.Settings == nil {
		return s
	}
	own := p.Settings
	if own.Policy != nil {
		s.Policy.Rule, _ = pick.ParseRule(*own.Policy) // no error: objects.CheckSettings has validated the policy
	}
	if own.AdapterThreshold != nil {
		s.Policy.Threshold = *own.AdapterThreshold
	}
	if own.Retry != nil && own.Retry.Attempts != nil {
		s.EndpointsPerRequest = 1 + int(*own.Retry.Attempts)
	}
	if own.Retry != nil && own.Retry.Unavailable != nil {
		s.FinalUnavailable = !*own.Retry.Unavailable
	}
	s.DefaultModel = own.DefaultModel
	if a := own.SessionAffinity; a != nil {
		s.AffinityHeader, s.AffinityCookie = a.Header, a.Cookie
	}
	if f := own.Flow; f != nil {
		s.Flow = f.Mode != v1alpha1.FlowOff
		if f.RequestsPerEndpoint != nil {
			s.RequestsPerEndpoint = int(*f.RequestsPerEndpoint)
		}
	}
	if t := own.Timeouts; t != nil {
		if t.Request != nil {
			s.Request = t.Request.Duration
		}
		if t.Queue != nil {
			s.QueueTimeout = t.Queue.Duration
		}
		if t.Empty != nil {
			s.EmptyTimeout = t.Empty.Duration
		}
		if t.InFlight != nil {
			s.InFlightTimeout = t.InFlight.Duration
		}
		if t.StaleAfter != nil {
			s.StaleAfter = t.StaleAfter.Duration
		}
		if t.LostAfter != nil {
			s.LostAfter = t.LostAfter.Duration
		}
		s.LostAfter = max(s.LostAfter, s.StaleAfter)
	}
	return s
}

// Line is one setting of a pool, to be displayed.
type Line struct {
	// Name is the name of the field in a PoolSettings' spec.
	Name, Value, Means string
	// Own means that the pool's PoolSettings sets the value. Otherwise Flag names the flag of
	// extproc that sets it, without dashes; if Flag is empty, the value is a fixed default.
	Own  bool
	Flag string
}

// Lines returns the effective settings of a pool. S are the settings from the flags.
func (s Settings) Lines(p *objects.Pool) []Line {
	var own v1alpha1.PoolSettingsSpec
	if p.Settings != nil {
		own = *p.Settings
	}
	var t v1alpha1.PoolTimeouts
	if own.Timeouts != nil {
		t = *own.Timeouts
	}
	s = s.For(p)
	affinity, request := "none", "the data plane's"
	switch {
	case s.AffinityHeader != "":
		affinity = "header " + s.AffinityHeader
	case s.AffinityCookie != "":
		affinity = "cookie " + s.AffinityCookie
	}
	if s.Request > 0 {
		request = s.Request.String()
	}
	empty, window, mode := "none", "no limit", v1alpha1.FlowOff
	if s.EmptyTimeout > 0 {
		empty = s.EmptyTimeout.String()
	}
	if s.EmptyTimeout > 0 && !s.Flow {
		empty += ", unused while flow.mode is Off"
	}
	if s.RequestsPerEndpoint > 0 {
		window = strconv.Itoa(s.RequestsPerEndpoint)
	}
	if s.Flow {
		mode = v1alpha1.FlowOn
	}
	timing := "none"
	if p.Profile != nil {
		timing = named(p.Said(""))
	}
	raised := t.StaleAfter != nil && s.LostAfter == t.StaleAfter.Duration // whether For has raised LostAfter to StaleAfter
	lines := []Line{
		{"policy", s.Policy.Rule.String(), "how extproc picks an endpoint", own.Policy != nil, "policy"},
		{
			"adapterThreshold", strconv.FormatInt(s.Policy.Threshold, 10),
			"prefer another endpoint once an endpoint has this many requests for the adapter", own.AdapterThreshold != nil,
			"adapter-threshold",
		},
		{"retry.attempts", strconv.Itoa(s.EndpointsPerRequest - 1), "other endpoints that the data plane may try", own.Retry != nil &&
			own.Retry.Attempts != nil, "endpoints-per-request"},
		{
			"retry.unavailable", strconv.FormatBool(!s.FinalUnavailable),
			"whether the data plane tries another endpoint after UNAVAILABLE, or 503 without Retry-After", own.Retry != nil &&
				own.Retry.Unavailable != nil, "",
		},
		{
			"sessionAffinity", affinity, "header or cookie that names a session, whose requests prefer one endpoint",
			own.SessionAffinity != nil, "",
		},
		{"defaultModel", cmp.Or(s.DefaultModel, "none"), "model of requests that name none", own.DefaultModel != "", ""},
		{
			"flow.mode", mode, "whether requests wait in a fair order while engines have no room", own.Flow != nil && own.Flow.Mode != "",
			"",
		},
		{
			"flow.requestsPerEndpoint", window, "requests that an engine without load reports gets at a time", own.Flow != nil &&
				own.Flow.RequestsPerEndpoint != nil, "",
		},
		{"timeouts.request", request, "longest time of a whole request", t.Request != nil, ""},
		{
			"timeouts.queue", s.QueueTimeout.String(), "longest wait for a model to be loaded, or for an engine with room", t.Queue != nil,
			"max-queue-time",
		},
		{"timeouts.empty", empty, "longest wait while no endpoint may get requests", t.Empty != nil, ""},
		{
			"timeouts.inFlight", s.InFlightTimeout.String(), "how long a request counts as in flight when nothing reports its end",
			t.InFlight != nil,
			"in-flight-timeout",
		},
		{
			"timeouts.staleAfter", s.StaleAfter.String(), "silence after which an endpoint gets requests only if no other can serve them",
			t.StaleAfter != nil, "stale-after",
		},
		{
			"timeouts.lostAfter", s.LostAfter.String(), "silence after which an endpoint gets requests only if all are silent",
			t.LostAfter != nil || raised, "lost-after",
		},
		{
			"rpcConfigs", rpcs(own.RPCConfigs), "gRPC methods with a configured field for the model",
			len(own.RPCConfigs) > 0, "",
		},
		{
			"allowOtherRpcs", strconv.FormatBool(own.AllowOtherRPCs == nil || *own.AllowOtherRPCs),
			"whether extproc forwards calls of methods that rpcConfigs does not name", own.AllowOtherRPCs != nil, "",
		},
		{"profile", timing, "service times of the pool's engines", own.Profile != nil, ""},
	}
	for _, class := range slices.Sorted(maps.Keys(p.Classes)) {
		lines = append(lines, Line{
			"profile.classes[" + class + "]", named(p.Classes[class]),
			"service times of engines on this accelerator", true, "",
		})
	}
	return append(lines, Line{
		"predictions", s.predictions(p),
		"whether policy latency uses them; GET /profiles and headgate_pool_predictions_trusted show the current state",
		own.Profile != nil, "",
	})
}

// rpcs describes the gRPC methods that a pool configures, as text.
func rpcs(all map[string]v1alpha1.RPCConfig) string {
	if len(all) == 0 {
		return "the built-in ones"
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), ", ")
}

// named describes a profile as text.
func named(is *objects.Said) string {
	name := cmp.Or(is.Name, "unnamed")
	if is.Pinned {
		name += ", pinned"
	}
	return name
}

// predictions describes, as text, when predictions for a pool are trusted. It uses only the pool's
// objects; a running extproc may also have learned profiles.
func (s Settings) predictions(p *objects.Pool) string {
	if !s.Policy.Predicts() {
		return "none: the policy uses none"
	}
	said, pinned := true, true
	note := func(is *objects.Said) {
		said, pinned = said && is != nil, pinned && is != nil && is.Pinned
	}
	for _, e := range p.Endpoints {
		note(p.Said(e.Class))
	}
	if len(p.Endpoints) == 0 {
		note(p.Said(""))
	}
	switch {
	case pinned:
		return "trusted: the profile is pinned"
	case said:
		return "trusted until they turn out wrong: the pool has a profile"
	}
	return "trusted once they are accurate, and policy proposal until then: the pool has no profile"
}
