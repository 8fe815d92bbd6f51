// Package bisect finds the routes that the Envoys of a Gateway reject. It does no I/O: callers pass
// it the answers of Envoys, and it returns the routes to leave out and the next trial.
//
// Envoy accepts or rejects a route configuration as a whole, and its error does not name the route.
// So the Bisection has Envoy try parts of the configuration on a listener without a port, where the
// routes get no requests. Meanwhile every Envoy keeps its last accepted configuration. The routes
// are in a list, with those that an Envoy has accepted before first. A binary search finds the
// shortest prefix of the list that Envoy rejects. The Bisection leaves out the last route of that
// prefix, and continues the search without it.
package bisect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// trialTimeout is how long an Envoy may take to answer a trial. Usually it takes milliseconds, but
// it may wait two seconds for the endpoints of a new cluster.
const trialTimeout = 10 * time.Second

// Resource names an xDS resource.
type Resource struct{ Type, Name string }

// Offer is the version of a resource that Envoys should have.
type Offer struct {
	Version string
	// Routes returns the routes whose rules are in a route configuration, including routes whose
	// requests get 500. It is nil for other resource types. It is called only when Envoys have
	// answered.
	Routes func() []objects.Object
}

func (o Offer) routes() []objects.Object {
	if o.Routes == nil {
		return nil
	}
	return o.Routes()
}

// Trial is a route configuration for Envoys to try. It is made from the plan at the start of the
// search, without some routes.
type Trial struct {
	// Search is the number of the search, from 1. Version is unique to each trial.
	Search  int
	Version string
	// Routes is the name of the route configuration. Out contains the routes to leave out of it.
	Routes string
	Out    map[objects.Object]plan.LeftOut
}

// Bisection records the answers of one Gateway's Envoys, and searches for the routes that they
// reject. Make one with [New].
type Bisection struct {
	seed     string
	searches int
	trials   int
	offered  map[Resource]Offer
	contents map[objects.Object]string
	answers  map[uint64]map[Resource]answer // by number of the Envoy
	// taken contains, for each route configuration, the contents of the routes in the last version
	// that an Envoy accepted.
	taken map[Resource]map[objects.Object]string
	found map[objects.Object]rejection
	// unexplained contains, for each route configuration, the rejected version that Envoy rejects
	// even without routes.
	unexplained map[Resource]string
	search      *search
	// stale is true if the offered resources still contain routes that must be left out.
	stale bool
}

// answer is the last answer of an Envoy about a resource.
type answer struct {
	version string
	refused string // Envoy's error; empty if it accepted
	// shared is true if the response contained other resources, which may be the rejected ones.
	shared bool
	// silent is true if the Envoy did not answer a trial in time.
	silent bool
}

// rejection is the reason to leave out a route. It applies while the route has this content.
type rejection struct {
	content string
	plan.LeftOut
}

// New returns the Bisection of a Gateway. Versions of trials begin with seed. Each process needs
// another seed, since an Envoy that reconnects from another control may still have a trial of that
// control.
func New(seed string) *Bisection {
	return &Bisection{
		seed: seed, answers: make(map[uint64]map[Resource]answer), taken: make(map[Resource]map[objects.Object]string),
		found: make(map[objects.Object]rejection), unexplained: make(map[Resource]string),
	}
}

// String returns the answers of Envoys, the rejected routes and the search, for tests and
// debugging.
func (q *Bisection) String() string {
	var out strings.Builder
	for _, envoy := range slices.Sorted(maps.Keys(q.answers)) {
		fmt.Fprintf(&out, "envoy %d: %+v\n", envoy, q.answers[envoy])
	}
	fmt.Fprintf(&out, "rejected: %+v\n", q.found)
	if s := q.search; s != nil {
		fmt.Fprintf(&out, "search %d: envoy %d accepts %d of %d routes of %s and rejects %d; it tries %d\n", s.number, s.envoy, s.low,
			len(s.routes),
			s.resource.Name, s.high, s.tries)
	}
	return out.String()
}

// Plan sets the contents of routes, as in [plan.Plan.Contents], and returns the routes to leave
// out. A rejected route with new content is tried again.
func (q *Bisection) Plan(contents map[objects.Object]string) map[objects.Object]plan.LeftOut {
	q.contents = contents
	out := make(map[objects.Object]plan.LeftOut)
	for of, f := range q.found {
		if contents[of] != f.content {
			delete(q.found, of)
			continue
		}
		out[of] = f.LeftOut
	}
	return out
}

// Offer sets the current resources, made without the routes that [Bisection.Plan] returned last.
func (q *Bisection) Offer(all map[Resource]Offer) {
	q.offered, q.stale = all, false
}

// Stale reports whether more routes must be left out than at the last [Bisection.Offer].
func (q *Bisection) Stale() bool { return q.stale }

// Answered records an answer of an Envoy, which has a unique number.
func (q *Bisection) Answered(envoy uint64, a order.Answer) {
	if q.answers[envoy] == nil {
		q.answers[envoy] = make(map[Resource]answer)
	}
	named := namedIn(a)
	for name, version := range a.Versions {
		r := Resource{a.Type, name}
		is := answer{version: version, refused: a.Refused, shared: len(a.Versions) > 1}
		if len(named) > 0 && !named[name] {
			is.refused = ""
		}
		if s := q.search; s != nil && s.envoy == envoy && s.asked == version {
			q.answered(is)
			continue
		}
		q.answers[envoy][r] = is
		if o := q.offered[r]; is.refused == "" && o.Version == version && a.Type == order.Routes {
			all := o.routes()
			q.taken[r] = make(map[objects.Object]string, len(all))
			for _, of := range all {
				q.taken[r][of] = q.contents[of]
			}
		}
	}
}

// namedIn returns the resources that the error of a NACK names. Of listeners and clusters, Envoy
// rejects only the named ones and accepts the rest of the response.
func namedIn(a order.Answer) map[string]bool {
	all := make(map[string]bool)
	for name := range a.Versions {
		if (a.Type == order.Listeners || a.Type == order.Clusters) && names(a.Refused, name) {
			all[name] = true
		}
	}
	return all
}

// names reports whether a text contains a name as a separate word.
func names(text, name string) bool {
	part := func(c byte) bool {
		return c == '/' || c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
	}
	for from := 0; ; {
		i := strings.Index(text[from:], name)
		if i < 0 {
			return false
		}
		begin, end := from+i, from+i+len(name)
		if (begin == 0 || !part(text[begin-1])) && (end == len(text) || !part(text[end])) {
			return true
		}
		from = begin + 1
	}
}

// Disconnected removes the answers of an Envoy that has disconnected.
func (q *Bisection) Disconnected(envoy uint64) { delete(q.answers, envoy) }

// Next returns the next trial, and false if there is none. Call it after every other method. Also
// call it from time to time, since a trial times out if Envoy does not answer.
func (q *Bisection) Next(now time.Time) (Trial, bool) {
	q.abandon(now)
	for {
		if q.search == nil {
			q.search = q.begin()
		}
		s := q.search
		if s == nil {
			return Trial{}, false
		}
		if s.over() {
			q.conclude(s)
			continue
		}
		if s.asked == "" {
			q.trials++
			s.asked, s.since = fmt.Sprintf("%s %d", q.seed, q.trials), now
		}
		return Trial{s.number, s.asked, s.resource.Name, s.trial()}, true
	}
}

// abandon ends a search that is no longer needed, or whose trial has timed out.
func (q *Bisection) abandon(now time.Time) {
	s := q.search
	if s == nil {
		return
	}
	is, there := q.answers[s.envoy][s.resource]
	switch {
	case !there || is.refused == "": // the Envoy disconnected, or accepts the current version
		q.search = nil
	case s.asked != "" && now.Sub(s.since) >= trialTimeout:
		is.silent = true
		q.answers[s.envoy][s.resource], q.search = is, nil
	}
}

// refusal is a NACK of the current version by an Envoy.
type refusal struct {
	envoy uint64
	Resource
	answer
}

// refusals returns the NACKs of current versions, sorted.
func (q *Bisection) refusals() (all []refusal) {
	for envoy, answers := range q.answers {
		for r, is := range answers {
			if is.refused != "" && is.version == q.offered[r].Version {
				all = append(all, refusal{envoy, r, is})
			}
		}
	}
	slices.SortFunc(all, func(x, y refusal) int {
		return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Name, y.Name), cmp.Compare(x.envoy, y.envoy))
	})
	return all
}

// bisectable reports whether a search may find a route that causes the NACK.
func (q *Bisection) bisectable(r refusal) bool {
	return r.Type == order.Routes && !r.silent && q.unexplained[r.Resource] != r.version
}

// begin starts a search for the cause of a NACK. It returns nil if no NACK needs a search.
func (q *Bisection) begin() *search {
	if q.stale {
		return nil
	}
	for _, r := range q.refusals() {
		if !q.bisectable(r) {
			continue
		}
		q.searches++
		s := &search{
			number: q.searches, envoy: r.envoy, resource: r.Resource, version: r.version,
			out: make(map[objects.Object]plan.LeftOut), low: -1,
		}
		for of, f := range q.found {
			s.out[of] = f.LeftOut
		}
		known, news := []suspect(nil), []suspect(nil)
		for _, of := range q.offered[r.Resource].routes() {
			is := suspect{of, q.contents[of]}
			if q.taken[r.Resource][of] == is.content {
				known = append(known, is)
			} else {
				news = append(news, is)
			}
		}
		s.routes, s.known = slices.Concat(known, news), len(known)
		s.high, s.tries = len(s.routes)+1, len(s.routes)
		if !r.shared {
			s.refused(r.refused)
		}
		return s
	}
	return nil
}

// conclude records the result of a search.
func (q *Bisection) conclude(s *search) {
	q.search = nil
	is := q.answers[s.envoy][s.resource]
	switch {
	case s.none:
		q.unexplained[s.resource] = s.version
	case len(s.rejected) == 0 && is.version == s.version: // Envoy accepts all routes: it rejected another resource of the same response
		is.refused = ""
		q.answers[s.envoy][s.resource] = is
	}
	for _, b := range s.rejected { // the next Plan drops routes that have changed meanwhile
		q.found[b.of], q.stale = rejection{b.content, s.out[b.of]}, true
	}
}

// answered records an Envoy's answer to the current trial.
func (q *Bisection) answered(is answer) {
	s := q.search
	s.asked = ""
	switch {
	case is.refused == "":
		s.took()
	case !is.shared: // if shared, the cause is unknown, and the trial is repeated
		s.refused(is.refused)
	}
}

// Fault is a NACK that no route is known to cause.
type Fault struct {
	Resource
	Message string
}

// Faults returns the current NACKs that no search can explain, sorted.
func (q *Bisection) Faults() []Fault {
	var all []Fault
	for _, r := range q.refusals() {
		if !q.bisectable(r) {
			all = append(all, Fault{r.Resource, r.refused})
		}
	}
	return slices.Compact(all)
}
