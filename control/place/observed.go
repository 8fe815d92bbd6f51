package place

import (
	"context"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// observeInterval is the default of [Config.ObserveInterval].
const observeInterval = time.Second

// observeGrace returns how long the reports of an extproc count after it has disconnected, since it
// may reconnect. A new control waits at least this long for extprocs before its first report.
func observeGrace(c *Config) time.Duration { return 3 * c.ObserveInterval }

// observePatience returns how long a new control waits for the first extproc before it reports that
// none is connected. Extprocs retry every few seconds, and a node may need longer to route them to
// a new leader.
func observePatience(c *Config) time.Duration { return 30 * c.ObserveInterval }

// observed contains the reports of extprocs and the results of control's scrapes. Placer.mu guards
// it.
type observed struct {
	extprocs map[string]*observer // by the name of the extproc's stream
	changed  bool                 // since the last report
	// tallies are the endpoints of each pool, as last reported. It is nil before the first report.
	tallies map[objects.Name]conditions.Tally
	// reports are the states of endpoints as last reported. If due is not zero, some change at that
	// time, even without news.
	reports map[string]conditions.Endpoint
	due     time.Time
}

// observer is what one extproc reports.
type observer struct {
	conditions.Extproc
	endpoints map[string]conditions.Endpoint
	left      time.Time // when it disconnected; zero while it is connected
}

// Observed records what an extproc, named by who, reports about endpoints. A zero state means that
// the extproc has removed the endpoint. If is is not nil, it replaces what is known of the
// extproc itself.
func (p *Placer) Observed(who string, all map[string]conditions.Endpoint, is *conditions.Extproc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.observed.extprocs[who]
	if o == nil {
		o = &observer{endpoints: make(map[string]conditions.Endpoint)}
		p.observed.extprocs[who] = o
	}
	if is != nil {
		o.Extproc = *is
	}
	for address, e := range all {
		if was, known := o.endpoints[address]; known && was.Reason != e.Reason {
			e.Since = time.Now() // the reported time is that of the state, not of the reason
		}
		if o.endpoints[address] = e; e.State == conditions.Unknown {
			delete(o.endpoints, address)
		}
	}
	p.observed.changed = true
}

// leave lets the reports of an extproc that has disconnected end soon.
func (o *observed) leave(who string) {
	if x := o.extprocs[who]; x != nil {
		x.left = time.Now()
	}
}

// scraped records whether a scrape of an endpoint succeeded. It keeps the error of the first failed
// scrape, since later ones may differ only in details.
func (o *observed) scraped(s *endpointWorker, err error) {
	is := conditions.Endpoint{State: conditions.Serving, Since: time.Now()}
	if err != nil {
		is.State, is.Reason = conditions.Out, "control cannot scrape it: "+err.Error()
	}
	if s.seen.State != is.State {
		s.seen, o.changed = is, true
	}
}

// KeepObserved passes the state of endpoints and data planes to report, until ctx ends. The first
// report comes when extprocs have had time to connect, and later if none connects. The others
// follow changes, at most one every second.
func (p *Placer) KeepObserved(ctx context.Context, report func(conditions.Observed)) {
	tick := time.NewTicker(p.ObserveInterval)
	defer tick.Stop()
	began := time.Now()
	for first := true; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		wait := observeGrace(&p.Config)
		if first && !hasExtprocs(p) {
			wait = observePatience(&p.Config)
		}
		if time.Since(began) < wait {
			continue
		}
		if o, news := observe(p, first); news {
			report(o)
		}
		first = false
	}
}

// hasExtprocs reports whether an extproc is connected.
func hasExtprocs(p *Placer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.observed.extprocs) > 0
}

// observe returns the state of endpoints and data planes, and whether it has changed since the last
// call. If a pool's endpoints begin or stop to answer, it queues the status of the pool's models.
func observe(p *Placer, first bool) (o conditions.Observed, news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for who, x := range p.observed.extprocs {
		if !x.left.IsZero() && time.Since(x.left) >= observeGrace(&p.Config) {
			delete(p.observed.extprocs, who)
			p.observed.changed = true
		}
	}
	now := time.Now()
	if due := p.observed.due; !p.observed.changed && !first && (due.IsZero() || now.Before(due)) {
		return o, false
	}
	p.observed.changed, p.observed.due = false, time.Time{}
	o = conditions.Observed{
		Reports: make(map[string]conditions.Endpoint), Scrapes: make(map[string]conditions.Endpoint, len(p.endpoints)),
		Failures: make(map[objects.ModelKey]string, len(p.refused)),
	}
	for _, who := range slices.Sorted(maps.Keys(p.observed.extprocs)) {
		x := p.observed.extprocs[who]
		o.Extprocs = append(o.Extprocs, x.Extproc)
		for address, e := range x.endpoints {
			if was, known := o.Reports[address]; known {
				e = conditions.Best(was, e)
			}
			o.Reports[address] = e
		}
	}
	for address, e := range o.Reports {
		is, due := conditions.Turn(p.observed.reports[address], e, now)
		o.Reports[address] = is
		if !due.IsZero() && (p.observed.due.IsZero() || due.Before(p.observed.due)) {
			p.observed.due = due
		}
	}
	p.observed.reports = o.Reports
	for address, s := range p.endpoints {
		if s.seen.State != conditions.Unknown {
			o.Scrapes[address] = s.seen
		}
	}
	for key, why := range p.refused {
		st, _ := p.state.Status(key)
		o.Failures[key] = explain(why, st.Failures)
	}
	tally(p, &o)
	return o, true
}

// tally counts the endpoints of pools. It queues the status of a pool's models if the endpoints
// begin or stop to answer, or if the reason why none answers has changed. The caller holds mu.
func tally(p *Placer, o *conditions.Observed) {
	was := p.observed.tallies
	p.observed.tallies = make(map[objects.Name]conditions.Tally, len(p.world.Pools))
	turned := make(map[objects.Name]bool)
	for name, pool := range p.world.Pools {
		before, is := was[name], o.TallyOf(pool)
		p.observed.tallies[name] = is
		if none(&before) != none(&is) || none(&is) && (before.Failing > 0) != (is.Failing > 0) { // another reason
			turned[name] = true
		}
	}
	if len(turned) == 0 {
		return
	}
	for _, st := range p.state.All() {
		if turned[st.Pool] {
			p.unsaved[st.ModelKey] = true
		}
	}
}

// none reports whether it is known that no endpoint answers. Nothing is known before the first
// report.
func none(t *conditions.Tally) bool { return t.Counted && t.Answers() == metav1.ConditionFalse }

// FalseConditions returns the conditions of Models and VModels that are False.
func FalseConditions(p *Placer) (out []admin.Condition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.state.All() {
		if st.Object.Name != "" {
			of := objects.Object{Kind: v1alpha1.ModelKind, Name: st.Object}
			out = append(out, conditions.FalseOf(of, "", p.modelStatus(st).Conditions)...)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(p.vmodels.declared), decide.Key.Compare) {
		v := p.vmodels.declared[key]
		st, _ := p.state.VModel(key)
		of := objects.Object{Kind: v1alpha1.VModelKind, Name: v.Object}
		out = append(out, conditions.FalseOf(of, "", p.conditionsOfVModel(v, st, p.Publisher.Behind(key)))...)
	}
	return out
}
