// Package lending divides the limits of routes and of their tenants among extproc processes.
//
// Each process may use an equal part of every limit, its share. If a process needs more of one
// limit, control divides that limit by demand until nobody needs it any more: it asks all processes
// what they hold, and from then on only what control lent is used. What a process returned or never
// got is lent to others. Nothing is lent before another process has confirmed that it does not use
// it. So processes never exceed a limit together, whatever messages are delayed or lost.
//
// The functions depend only on their arguments. Times are durations since a fixed moment.
package lending

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/internal/placementproto"
)

const (
	// Lost is how long control keeps what a process holds after its last report.
	Lost = 30 * time.Second
	// grace is how long a control that has started waits for processes of an earlier one, if no
	// process has reported any.
	grace = 3 * time.Second
	// quiet is how long a process may be silent until control does not wait for its answer.
	quiet = 2 * time.Second
	// turn is how long one process is first where a limit is too small for all.
	turn = time.Second
	// maxDivisions limits the number of limits that are divided by demand. Equal parts of others
	// stay equal.
	maxDivisions = 4096
	// kept is how long a division stays without demand.
	kept = 3 * time.Second
)

// Lender is what control knows of the use of limits. It is not safe for concurrent use.
type Lender struct {
	began     time.Duration
	starting  bool // processes of an earlier control may not have connected yet
	number    uint64
	known     int // the number of processes that an earlier control knew
	members   map[string]*Member
	divisions map[key]*division
	epoch     uint64
	grown     bool // all processes use their share of the epoch
	full      bool // no process has used anything before this epoch
	joined    uint64
}

// key identifies a limit.
type key struct {
	route  string
	tenant uint64
	whole  bool
}

// Member is one process. A new one is made for each stream.
type Member struct {
	process string
	order   uint64
	index   uint64 // its number in the current epoch
	// Processes is the number of processes by which it divided limits; 0 if it had no part.
	processes uint64
	heard     time.Duration
	known     bool   // a control has known it before this stream
	applied   uint64 // the last epoch that it applied
	probe     uint64
	last      time.Duration // when the last probe came, and the one before; -1 for none
	before    time.Duration
	sure      time.Duration // until then it counts on control
	share     bool          // the share is to be sent
	echo      bool          // the last probe is to be echoed
	parts     map[key]bool  // to be sent
	released  map[key]uint64
	gone      bool // another stream of the process has replaced it, or it has ended
}

// New returns a Lender. Number is larger than that of all earlier ones, for example the time.
func New(number uint64, now time.Duration) *Lender {
	return &Lender{
		began: now, starting: true, number: number, epoch: number, members: make(map[string]*Member), divisions: make(map[key]*division),
		full: true,
	}
}

// Join adds a stream of a process, which replaces its earlier ones.
func (l *Lender) Join(process string, now time.Duration) *Member {
	l.joined++
	m := &Member{
		process: process, order: 1<<32 + l.joined, heard: now, last: -1, before: -1, sure: -1,
		parts: make(map[key]bool), released: make(map[key]uint64),
	}
	for k := range l.divisions {
		m.parts[k] = true
	}
	if was := l.members[process]; was != nil {
		m.order, m.applied, m.processes, m.known, m.sure = was.order, was.applied, was.processes, was.known, was.sure
		was.gone = true
		for _, d := range l.divisions {
			if h := d.holders[was]; h != nil {
				delete(d.holders, was)
				h.fresh, h.entered, h.lent, h.spent = true, false, [3]int64{}, [3]int64{}
				d.holders[m] = h
			}
		}
		l.members[process] = m
		m.index, m.share = was.index, !l.starting
		return m
	}
	l.members[process] = m
	l.renumber()
	return m
}

func compare(a, b *Member) int {
	return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.process, b.process))
}

// renumber begins an epoch. The members have changed.
func (l *Lender) renumber() {
	if l.starting {
		return
	}
	l.epoch++
	l.full = l.full && !l.grown
	l.grown = false
	all := slices.SortedFunc(maps.Values(l.members), compare)
	for i, m := range all {
		m.index, m.share = uint64(i), true //nolint:gosec // an index
	}
}

// Hear records a report. It returns the members for which [Lender.Update] may have news.
func (l *Lender) Hear(m *Member, r *placement.LimitsReport, now time.Duration) (wake []*Member) {
	if m.gone {
		return nil
	}
	first := m.probe == 0
	m.heard, m.applied = now, r.GetEpoch()
	if n := uint64(r.GetProcesses()); n > 0 {
		if m.processes = n; first && l.starting {
			m.order = uint64(r.GetIndex())
		}
	}
	if n := int(r.GetMembers()); first && n > 0 { // an earlier control knew it
		m.known, l.full = true, false
		l.known = max(l.known, n)
	}
	if r.GetProbe() > m.probe {
		if m.before >= 0 {
			m.sure = m.before + placementproto.LimitsLease
		}
		m.probe, m.before, m.last, m.echo = r.GetProbe(), m.last, now, true
	}
	touched := make(map[key]bool)
	for _, u := range r.GetUses() {
		k := key{u.GetRoute(), u.GetTenant(), u.GetWhole()}
		if l.use(m, k, u, now) {
			touched[k] = true
		}
	}
	if r.GetEnded() {
		l.remove(m, true, now)
	}
	l.pass(now)
	for k := range touched {
		if d := l.divisions[k]; d != nil {
			l.divide(k, d, m, now)
		}
	}
	for _, o := range l.members {
		if o.news() {
			wake = append(wake, o)
		}
	}
	return wake
}

func (m *Member) news() bool { return m.share || m.echo || len(m.parts)+len(m.released) > 0 }

// pass does what time alone causes.
func (l *Lender) pass(now time.Duration) {
	for _, m := range l.members {
		if now-m.heard > Lost {
			l.remove(m, false, now)
		}
	}
	if l.starting {
		there := 0
		for _, m := range l.members {
			if m.known {
				there++
			}
		}
		switch passed := now - l.began; {
		case passed >= Lost, l.known > 0 && there >= l.known, l.known == 0 && passed >= grace:
			l.starting = false
			l.renumber()
		}
	}
	if !l.starting && !l.grown {
		l.grown = true
		for _, m := range l.members {
			l.grown = l.grown && m.applied == l.epoch
		}
		for _, m := range l.members {
			m.share = m.share || l.grown
		}
	}
}

// Tick does what time alone causes: call it about once a second. It returns the members for which
// Update may have news.
func (l *Lender) Tick(now time.Duration) (wake []*Member) {
	l.pass(now)
	for k, d := range l.divisions {
		l.divide(k, d, nil, now)
	}
	for _, m := range l.members {
		if m.news() {
			wake = append(wake, m)
		}
	}
	return wake
}

// remove removes a process. What it held counts as used, unless it has reported that it ended.
func (l *Lender) remove(m *Member, ended bool, now time.Duration) {
	m.gone = true
	delete(l.members, m.process)
	l.full = false
	for k, d := range l.divisions {
		d.drain(now)
		if h := d.holders[m]; h != nil && d.begun && !ended {
			for i := 1; i < 3; i++ {
				d.level[i] += float64(max(0, h.held[i]))
			}
		}
		if delete(d.holders, m); len(l.members) == 0 {
			delete(l.divisions, k)
		}
	}
	l.renumber()
}

// Update returns the news for a process; nil if there are none.
func (l *Lender) Update(m *Member) *placement.LimitsUpdate {
	if m.gone || !m.news() {
		return nil
	}
	u := &placement.LimitsUpdate{}
	if m.echo {
		u.Echo, m.echo = m.probe, false
	}
	for k, number := range m.released {
		u.Parts = append(u.Parts, &placement.LimitPart{Route: k.route, Tenant: k.tenant, Whole: k.whole, Division: number, Released: true})
	}
	clear(m.released)
	for k := range m.parts {
		d := l.divisions[k]
		if d == nil {
			continue
		}
		p := &placement.LimitPart{Route: k.route, Tenant: k.tenant, Whole: k.whole, Division: d.number}
		h := d.holders[m]
		if h == nil {
			h = &holder{}
			d.holders[m] = h
		}
		if !d.begun || !h.entered {
			h.target = d.limit
			for i := range h.target { // until it is known
				h.target[i] = max(h.target[i], math.MaxInt32)
			}
		}
		var left [3]int64
		for i, n := range d.limit {
			left[i] = max(0, n-int64(math.Ceil(d.level[i])))
		}
		p.Lent, p.Target, p.Left = h.lent[:], h.target[:], left[:]
		p.Lent, p.Target, p.Left = slices.Clone(p.Lent), slices.Clone(p.Target), slices.Clone(p.Left)
		u.Parts = append(u.Parts, p)
	}
	clear(m.parts)
	if m.share {
		m.share = false
		u.Share = &placement.LimitShare{
			Epoch: l.epoch, Index: uint32(m.index), Processes: uint32(len(l.members)), Grow: l.grown, Full: l.full, //nolint:gosec // small
		}
	}
	return u
}

// Size returns the number of processes and of divisions.
func (l *Lender) Size() (members, divisions int) { return len(l.members), len(l.divisions) }
