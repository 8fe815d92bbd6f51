// Package settings is how requests of a pool are treated: what extproc's flags say for every pool,
// and what a PoolSettings says for one. It is pure.
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

// Settings are complete: nothing is left to be filled in.
type Settings struct {
	Policy pick.Policy
	// Picks is how many endpoints an answer names, in order: the first and those to try after it.
	// At least 1.
	Picks int
	// FinalUnavailable says that UNAVAILABLE, and 503 without Retry-After, go to the client: no
	// other endpoint gets the request.
	FinalUnavailable bool
	// AffinityHeader and AffinityCookie are what names a session; at most one is set.
	AffinityHeader, AffinityCookie string
	// DefaultModel is the model of requests that name none, as clients name it; empty if they are
	// refused.
	DefaultModel string
	// Request bounds a whole request; 0 leaves it to the data plane.
	Request time.Duration
	// Hold is how long a request waits at most for its model to be loaded.
	Hold time.Duration
	// Lease is how long a request counts as in flight whose end nothing reports.
	Lease time.Duration
	// Stale is the silence after which an endpoint gets requests only where no other can, Lost the
	// one after which it gets them only where every endpoint is silent.
	Stale, Lost time.Duration
}

// DefaultHold is time for the largest adapters from a slow disk, and for a turn in a load queue.
// The data plane must wait as long: envoy.yaml's max_message_timeout.
const DefaultHold = 5 * time.Minute

// Default returns what holds where nobody says otherwise.
func Default() Settings {
	return Settings{
		Policy: pick.Policy{Rule: pick.Latency, Threshold: pick.DefaultThreshold},
		Picks:  1,
		Hold:   DefaultHold,
		// An engine counts what it runs. What a lease frees too early comes back as others' load
		// with the next look, so that a lease may be much shorter than the longest answer.
		Lease: time.Minute,
		// Five looks at the default interval: a busy vLLM misses one or two, for its one process
		// does both.
		Stale: time.Second,
		// vLLM that hangs after SIGTERM is silent while its port is open (seen on 0.32.0).
		Lost: 10 * time.Second,
	}
}

// For returns the settings of a pool: its own where it has any, else s. P may be nil.
func (s Settings) For(p *objects.Pool) Settings {
	if p == nil || p.Settings == nil {
		return s
	}
	own := p.Settings
	if own.Policy != nil {
		s.Policy.Rule, _ = pick.ParseRule(*own.Policy) // objects.CheckSettings let it through
	}
	if own.AdapterThreshold != nil {
		s.Policy.Threshold = *own.AdapterThreshold
	}
	if own.Retry != nil && own.Retry.Attempts != nil {
		s.Picks = 1 + int(*own.Retry.Attempts)
	}
	if own.Retry != nil && own.Retry.Unavailable != nil {
		s.FinalUnavailable = !*own.Retry.Unavailable
	}
	s.DefaultModel = own.DefaultModel
	if a := own.SessionAffinity; a != nil {
		s.AffinityHeader, s.AffinityCookie = a.Header, a.Cookie
	}
	if t := own.Timeouts; t != nil {
		if t.Request != nil {
			s.Request = t.Request.Duration
		}
		if t.Queue != nil {
			s.Hold = t.Queue.Duration
		}
		if t.InFlight != nil {
			s.Lease = t.InFlight.Duration
		}
		if t.StaleAfter != nil {
			s.Stale = t.StaleAfter.Duration
		}
		if t.LostAfter != nil {
			s.Lost = t.LostAfter.Duration
		}
		s.Lost = max(s.Lost, s.Stale)
	}
	return s
}

// Line is one setting of a pool, for people.
type Line struct {
	// Name is that of the field of a PoolSettings' spec.
	Name, Value, Means string
	// Own says that the pool's PoolSettings sets it; else it is as Flag has it, a flag of extproc
	// without dashes, or where that is empty, as it always is.
	Own  bool
	Flag string
}

// Lines are the settings of a pool. S is what the flags say.
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
	timing := "none"
	if p.Profile != nil {
		timing = named(p.Said(""))
	}
	raised := t.StaleAfter != nil && s.Lost == t.StaleAfter.Duration // lost is at least stale
	lines := []Line{
		{"policy", s.Policy.Rule.String(), "how extproc picks an endpoint", own.Policy != nil, "policy"},
		{"adapterThreshold", strconv.FormatInt(s.Policy.Threshold, 10),
			"requests for one adapter at one endpoint from which on another endpoint is preferred", own.AdapterThreshold != nil,
			"adapter-threshold"},
		{"retry.attempts", strconv.Itoa(s.Picks - 1), "other endpoints that the data plane may try", own.Retry != nil &&
			own.Retry.Attempts != nil, "endpoints-per-request"},
		{"retry.unavailable", strconv.FormatBool(!s.FinalUnavailable),
			"whether UNAVAILABLE, or 503 without Retry-After, is a reason to try another endpoint", own.Retry != nil &&
				own.Retry.Unavailable != nil, ""},
		{"sessionAffinity", affinity, "which header or cookie names a session, which prefers one endpoint", own.SessionAffinity != nil, ""},
		{"defaultModel", cmp.Or(s.DefaultModel, "none"), "the model of requests that name none", own.DefaultModel != "", ""},
		{"timeouts.request", request, "longest time of a whole request", t.Request != nil, ""},
		{"timeouts.queue", s.Hold.String(), "longest wait for a model to be loaded", t.Queue != nil, "max-queue-time"},
		{"timeouts.inFlight", s.Lease.String(), "how long a request counts as in flight when nothing reports its end", t.InFlight != nil,
			"in-flight-timeout"},
		{"timeouts.staleAfter", s.Stale.String(), "silence after which an endpoint gets requests only if no other can serve them",
			t.StaleAfter != nil, "stale-after"},
		{"timeouts.lostAfter", s.Lost.String(), "silence after which an endpoint gets requests only if all are silent",
			t.LostAfter != nil || raised, "lost-after"},
		{"rpcConfigs", rpcs(own.RPCConfigs), "gRPC methods of which it is said where their messages name the model",
			len(own.RPCConfigs) > 0, ""},
		{"allowOtherRpcs", strconv.FormatBool(own.AllowOtherRPCs == nil || *own.AllowOtherRPCs),
			"whether models take calls of methods that rpcConfigs do not name", own.AllowOtherRPCs != nil, ""},
		{"profile", timing, "how long the pool's engines take", own.Profile != nil, ""},
	}
	for _, class := range slices.Sorted(maps.Keys(p.Classes)) {
		lines = append(lines, Line{"profile.classes[" + class + "]", named(p.Classes[class]),
			"how long engines of this class of hardware take", true, ""})
	}
	return append(lines, Line{
		"predictions", s.predictions(p),
		"whether policy latency decides by them: now, GET /profiles and headgate_pool_predictions_trusted say", own.Profile != nil, "",
	})
}

// rpcs are the methods that a pool says something of, for people.
func rpcs(all map[string]v1alpha1.RPCConfig) string {
	if len(all) == 0 {
		return "those known by default"
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), ", ")
}

// named is a profile for people.
func named(is *objects.Said) string {
	name := cmp.Or(is.Name, "one without a name")
	if is.Pinned {
		name += ", pinned"
	}
	return name
}

// predictions says when predictions for a pool are trusted, as far as its objects tell: what was
// learned is known to who serves.
func (s Settings) predictions(p *objects.Pool) string {
	if !s.Policy.Predicts() {
		return "none: the policy asks for none"
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
		return "trusted: nothing is learned"
	case said:
		return "trusted until they turn out wrong: a profile is given"
	}
	return "trusted once they come true, and policy proposal until then: no profile is given"
}
