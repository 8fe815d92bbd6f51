// Package settings is how requests of a pool are treated: what extproc's flags say for every pool, and what a PoolSettings
// says for one. It is pure.
package settings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// Settings are complete: nothing is left to be filled in.
type Settings struct {
	Policy pick.Policy
	// Picks is how many endpoints an answer names, in order: the first and those to try after it. At least 1.
	Picks int
	// AffinityHeader and AffinityCookie are what names a session; at most one is set.
	AffinityHeader, AffinityCookie string
	// Request bounds a whole request; 0 leaves it to the data plane.
	Request time.Duration
	// Hold is how long a request waits at most for its model to be loaded.
	Hold time.Duration
	// Lease is how long a request counts as in flight whose end nothing reports.
	Lease time.Duration
	// Stale is the silence after which an endpoint gets requests only where no other can, Lost the one after which it
	// gets them only where every endpoint is silent.
	Stale, Lost time.Duration
}

// DefaultHold is time for the largest adapters from a slow disk, and for a turn in a load queue. The data plane must wait
// as long: envoy.yaml's max_message_timeout.
const DefaultHold = 5 * time.Minute

// Default returns what holds where nobody says otherwise.
func Default() Settings {
	return Settings{
		Policy: pick.Policy{Rule: pick.Proposal, Threshold: pick.DefaultThreshold},
		Picks:  1,
		Hold:   DefaultHold,
		// An engine counts what it runs. What a lease frees too early comes back as others' load with the next look, so
		// that a lease may be much shorter than the longest answer.
		Lease: time.Minute,
		// Five looks at the default interval: a busy vLLM misses one or two, for its one process does both.
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
	if a := own.SessionAffinity; a != nil {
		s.AffinityHeader, s.AffinityCookie = a.Header, a.Cookie
	}
	if t := own.Timeouts; t != nil {
		if t.Request != nil {
			s.Request = t.Request.Duration
		}
		if t.Hold != nil {
			s.Hold = t.Hold.Duration
		}
		if t.Lease != nil {
			s.Lease = t.Lease.Duration
		}
		if t.Stale != nil {
			s.Stale = t.Stale.Duration
		}
		if t.Lost != nil {
			s.Lost = t.Lost.Duration
		}
		s.Lost = max(s.Lost, s.Stale)
	}
	return s
}

// Explain says, for people, what holds for each pool of w, and where it comes from. S is what the flags say.
func (s Settings) Explain(w *objects.World) string {
	pools := make([]*objects.Pool, 0, len(w.Pools))
	for _, p := range w.Pools {
		pools = append(pools, p)
	}
	slices.SortFunc(pools, func(a, b *objects.Pool) int { return a.Name.Compare(b.Name) })
	var out strings.Builder
	for _, p := range pools {
		fmt.Fprintf(&out, "pool %s, %d endpoints", p.Name, len(p.Endpoints))
		if p.Settings != nil {
			fmt.Fprintf(&out, ", PoolSettings %s", p.SettingsName)
		}
		out.WriteString("\n")
		flags, own := s.lines(), s.For(p).lines()
		for i, l := range own {
			source := "flags"
			if l.value != flags[i].value {
				source = "PoolSettings"
			}
			fmt.Fprintf(&out, "  %-18s %-16s %-13s %s\n", l.name, l.value, source, l.means)
		}
	}
	if len(pools) == 0 {
		out.WriteString("there is no pool\n")
	}
	return out.String()
}

// line is one setting for people.
type line struct{ name, value, means string }

func (s Settings) lines() []line {
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
	return []line{
		{"policy", s.Policy.Rule.String(), "how an endpoint is picked"},
		{"adapterThreshold", strconv.FormatInt(s.Policy.Threshold, 10), "requests for one adapter at one endpoint before another is looked for"},
		{"retry.attempts", strconv.Itoa(s.Picks - 1), "other endpoints that the data plane is told to try"},
		{"sessionAffinity", affinity, "what names a session that prefers one endpoint"},
		{"timeouts.request", request, "for a whole request"},
		{"timeouts.hold", s.Hold.String(), "waiting for a model to be loaded"},
		{"timeouts.lease", s.Lease.String(), "how long a request counts whose end nothing reports"},
		{"timeouts.stale", s.Stale.String(), "silence after which an endpoint is used only where no other can be"},
		{"timeouts.lost", s.Lost.String(), "silence after which it is used only where all are silent"},
	}
}
