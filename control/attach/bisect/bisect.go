// Package bisect finds which routes the Envoys of a Gateway refuse. It is pure: what Envoys answer goes in, and out come the routes to leave
// out, and what an Envoy is to try next.
//
// An Envoy takes or refuses a route configuration as a whole, and says why and not which route. So the Bisection has it try parts of what it
// refused, on a listener without a port, where nothing of them is in force: meanwhile every Envoy keeps what it has. Routes are in a row,
// those that an Envoy has taken before first. The Bisection looks for the shortest beginning of the row that is refused: its last route is
// to blame, whatever the ones before it have to do with that. Without it, it goes on.
package bisect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// trialTimeout is for how long an Envoy may be silent about what it is to try. One answers within milliseconds, and may wait two seconds for
// the endpoints of a new cluster before.
const trialTimeout = 10 * time.Second

// Resource is one that Envoys are to have.
type Resource struct{ Type, Name string }

// Offer is the version of a resource that Envoys are to have.
type Offer struct {
	Version string
	// Routes returns those that a route configuration has rules of, which may answer 500: asked for when Envoys have answered, and nil for
	// other resources.
	Routes func() []objects.Object
}

func (o Offer) routes() []objects.Object {
	if o.Routes == nil {
		return nil
	}
	return o.Routes()
}

// Trial is what Envoys are to try: a route configuration of the plan from which it was made when its search began, without some routes.
type Trial struct {
	// Search is another number with each search, and above 0. Version is another with each trial.
	Search  int
	Version string
	// Routes is the name of the route configuration, and Out what to leave out of it.
	Routes string
	Out    map[objects.Object]plan.LeftOut
}

// Bisection is what is known of the Envoys of one Gateway. Make one with [New].
type Bisection struct {
	seed     string
	searches int
	trials   int
	offered  map[Resource]Offer
	contents map[objects.Object]string
	answers  map[uint64]map[Resource]answer // by Envoy
	// taken are the contents of routes in the last version of a route configuration that an Envoy took.
	taken map[Resource]map[objects.Object]string
	found map[objects.Object]rejection
	// unexplained are refused versions of which no route is to blame.
	unexplained map[Resource]string
	search      *search
	// stale says that more is to be left out than what is offered was made without.
	stale bool
}

// answer is what an Envoy said last of a resource.
type answer struct {
	version string
	refused string // why; empty if it has taken it
	// shared says that the response had other resources, which may be the refused ones.
	shared bool
	// silent says that the Envoy was asked which route it refuses, and did not answer.
	silent bool
}

// rejection is a route that is refused, as long as its content is this.
type rejection struct {
	content string
	plan.LeftOut
}

// New returns the Bisection of a Gateway. The versions of its trials begin with seed, which is to be another in each process: an Envoy that
// comes from another control may still have a trial of that.
func New(seed string) *Bisection {
	return &Bisection{
		seed: seed, answers: make(map[uint64]map[Resource]answer), taken: make(map[Resource]map[objects.Object]string),
		found: make(map[objects.Object]rejection), unexplained: make(map[Resource]string),
	}
}

// Plan says what the contents of routes are, as [plan.Plan.Contents] has them, and returns those to leave out. A route whose content is
// another than the refused one is tried again.
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

// Offer says what Envoys are to have now, of the plan without what [Bisection.Plan] returned last.
func (q *Bisection) Offer(all map[Resource]Offer) {
	q.offered, q.stale = all, false
}

// Stale says that more is to be left out than when [Bisection.Offer] was called last.
func (q *Bisection) Stale() bool { return q.stale }

// Answered takes what an Envoy says of what it was sent, under a number that no other has.
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

// namedIn are the resources that an Envoy's words name. Of listeners and clusters it names those that it refuses, and takes the others.
func namedIn(a order.Answer) map[string]bool {
	all := make(map[string]bool)
	for name := range a.Versions {
		if (a.Type == order.Listeners || a.Type == order.Clusters) && names(a.Refused, name) {
			all[name] = true
		}
	}
	return all
}

// names says whether a text has a name as a word of its own.
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

// Disconnected takes that an Envoy has gone.
func (q *Bisection) Disconnected(envoy uint64) { delete(q.answers, envoy) }

// Next returns what Envoys are to try now; false for nothing. It is to be called after each of the others, and after some time without
// them: who does not answer is not waited for without end.
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

// give gives up the search that cannot end, or need not.
func (q *Bisection) abandon(now time.Time) {
	s := q.search
	if s == nil {
		return
	}
	is, there := q.answers[s.envoy][s.resource]
	switch {
	case !there || is.refused == "": // it has left, or takes what there is now
		q.search = nil
	case s.asked != "" && now.Sub(s.since) >= trialTimeout:
		is.silent = true
		q.answers[s.envoy][s.resource], q.search = is, nil
	}
}

// refusal is an Envoy that refuses what it is to have.
type refusal struct {
	envoy uint64
	Resource
	answer
}

// refusals are those of what is offered, in order.
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

// bisectable says whether there may be a route to blame.
func (q *Bisection) bisectable(r refusal) bool {
	return r.Type == order.Routes && !r.silent && q.unexplained[r.Resource] != r.version
}

// begin returns a search for what an Envoy refuses, nil if there is none to begin.
func (q *Bisection) begin() *search {
	if q.stale {
		return nil
	}
	for _, r := range q.refusals() {
		if !q.bisectable(r) {
			continue
		}
		q.searches++
		s := &search{number: q.searches, envoy: r.envoy, resource: r.Resource, version: r.version, out: make(map[objects.Object]plan.LeftOut), low: -1}
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

// conclude takes what a search found.
func (q *Bisection) conclude(s *search) {
	q.search = nil
	is := q.answers[s.envoy][s.resource]
	switch {
	case s.none:
		q.unexplained[s.resource] = s.version
	case len(s.rejected) == 0 && is.version == s.version: // it has taken it, and refused another resource of the same response
		is.refused = ""
		q.answers[s.envoy][s.resource] = is
	}
	for _, b := range s.rejected { // what has changed meanwhile, the next Plan forgets
		q.found[b.of], q.stale = rejection{b.content, s.out[b.of]}, true
	}
}

// heard takes what the Envoy of the search says of what it is to try.
func (q *Bisection) answered(is answer) {
	s := q.search
	s.asked = ""
	switch {
	case is.refused == "":
		s.took()
	case !is.shared: // else nobody knows what it refuses: it is to try again
		s.refused(is.refused)
	}
}

// Fault is what Envoys refuse that is no route's, as far as anybody knows.
type Fault struct {
	Resource
	Words string
}

// Faults returns what Envoys refuse beside the routes to leave out, in order.
func (q *Bisection) Faults() []Fault {
	var all []Fault
	for _, r := range q.refusals() {
		if !q.bisectable(r) {
			all = append(all, Fault{r.Resource, r.refused})
		}
	}
	return slices.Compact(all)
}
