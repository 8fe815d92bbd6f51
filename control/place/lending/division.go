package lending

import (
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/api/placement"
)

// division is one limit that control divides by demand. In the arrays are numbers of concurrent
// requests, requests and tokens.
type division struct {
	number  uint64
	begun   bool // all processes have reported what they hold
	limit   [3]int64
	level   [3]float64 // what was used lately and is not refilled yet; not of concurrent requests
	at      time.Duration
	wanted  time.Duration // when anybody last wanted something
	ends    bool
	holders map[*Member]*holder
}

// holder is what a process has of a division.
type holder struct {
	entered                        bool
	limit, want, unit              [3]int64
	held, lent, spent, own, target [3]int64
	fresh                          bool // the first report on this stream has not come yet
}

func array(of []int64) (a [3]int64) {
	copy(a[:], of)
	return a
}

// use records the use of a limit by a process. It returns whether the limit must be divided anew.
func (l *Lender) use(m *Member, k key, u *placement.LimitUse, now time.Duration) bool {
	d := l.divisions[k]
	if d == nil {
		if u.GetDivision() == 0 && (l.starting || len(l.divisions) >= maxDivisions || len(l.members) < 2 && m.processes == 1) {
			return false
		}
		l.number++
		d = &division{number: l.number, at: now, wanted: now, holders: make(map[*Member]*holder)}
		l.divisions[k] = d
		for _, o := range l.members {
			o.parts[k] = true
		}
	}
	h := d.holders[m]
	if h == nil {
		h = &holder{}
		d.holders[m] = h
	}
	h.limit, h.want, h.unit = array(u.GetLimit()), array(u.GetWant()), array(u.GetUnit())
	if h.want != ([3]int64{}) {
		d.wanted = now
	}
	d.setLimit()
	if u.GetDivision() != d.number {
		return false
	}
	d.drain(now)
	held, seen, spent := array(u.GetHeld()), array(u.GetSeen()), array(u.GetSpent())
	for i := range held {
		held[i] += h.lent[i] - seen[i]
		if i > 0 && d.begun {
			d.level[i] = max(0, d.level[i]+float64(spent[i]-h.spent[i]))
			if !h.entered { // it used what it does not hold any more, as far as is known
				d.level[i] += float64(max(0, h.held[i]-held[i]-spent[i]))
			}
		}
	}
	h.held, h.spent, h.own, h.entered, h.fresh = held, spent, array(u.GetOwn()), true, false
	return true
}

// setLimit sets the limit to the smallest one that processes report.
func (d *division) setLimit() {
	d.limit = [3]int64{}
	for _, h := range d.holders {
		for i, n := range h.limit {
			if n > 0 && (d.limit[i] == 0 || n < d.limit[i]) {
				d.limit[i] = n
			}
		}
	}
}

// drain refills the limit for the time that has passed, without what processes that do not count on
// control refill themselves.
func (d *division) drain(now time.Duration) {
	passed := now - d.at
	if passed <= 0 {
		return
	}
	for i := 1; i < 3; i++ {
		refill := float64(d.limit[i]) * passed.Minutes()
		for m, h := range d.holders {
			since := d.at
			if h.entered {
				since = max(since, m.sure)
			}
			refill -= float64(h.own[i]) * max(0, now-since).Minutes()
		}
		d.level[i] = max(0, d.level[i]-max(0, refill))
	}
	d.at = now
}

// begin starts to lend when all processes have reported what they hold. A silent one is assumed to
// hold an equal part, rounded up.
func (d *division) begin(l *Lender, now time.Duration) {
	for _, m := range l.members {
		if h := d.holders[m]; (h == nil || !h.entered) && now-m.heard <= quiet {
			return
		}
	}
	for _, m := range l.members {
		h := d.holders[m]
		if h == nil {
			h = &holder{}
			d.holders[m] = h
		}
		if !h.entered && m.processes > 0 {
			for i, n := range d.limit {
				if n > 0 {
					h.held[i] = max(h.held[i], min(n, n/int64(m.processes)+1)) //nolint:gosec // bounded by uint32
					h.own[i] = h.held[i]
				}
			}
		}
	}
	d.begun = true
	for i := 1; i < 3; i++ {
		free := d.limit[i]
		for _, h := range d.holders {
			free -= h.held[i]
		}
		d.level[i] = float64(max(0, free))
	}
	d.at = now
}

// divide lends what is left of a limit, after a report of a process or, if it is nil, after a
// second.
func (l *Lender) divide(k key, d *division, after *Member, now time.Duration) {
	if !d.begun && !l.starting {
		d.begin(l, now)
	}
	if !d.begun {
		return
	}
	d.drain(now)
	d.ends = now-d.wanted > kept && d.level[1] == 0 && d.level[2] == 0
	var all []*Member
	for _, m := range l.members {
		if h := d.holders[m]; h != nil && h.entered {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, compare)
	if len(all) == 0 {
		return
	}
	empty := len(all) == len(l.members)
	for i, n := range d.limit {
		avail, short := n-int64(math.Ceil(d.level[i])), int64(0)
		claims := make([]Claim, len(all))
		left := avail
		for m, h := range d.holders {
			if left -= h.held[i]; !slices.Contains(all, m) {
				avail -= h.held[i]
			}
			empty = empty && h.held[i] == 0
		}
		for j, m := range all {
			h := d.holders[m]
			claims[j] = Claim{min(n, h.want[i]), min(n, h.unit[i])}
			short += max(0, claims[j].Want-h.held[i])
		}
		first := int(now/turn) % len(all)
		targets := Divide(avail, claims, first)
		for j := range all {
			at := (j + first) % len(all)
			m, want, target := all[at], claims[at].Want, targets[at]
			h := d.holders[m]
			switch {
			case d.ends:
				target = 0
			case short <= max(0, left):
				target = max(n, target) // nobody has to return anything
			}
			if more := min(want, target) - h.held[i]; more > 0 && left > 0 && !d.ends {
				more = min(more, left)
				h.lent[i] += more
				h.held[i] += more
				left -= more
				m.parts[k] = true
			}
			if target != h.target[i] {
				h.target[i] = target
				m.parts[k] = true
			}
			if want > h.held[i] && (after == nil || after == m) {
				m.parts[k] = true // it tells clients when to come again
			}
		}
	}
	if d.ends && empty {
		for m := range d.holders {
			m.released[k] = d.number
			delete(m.parts, k)
		}
		delete(l.divisions, k)
	}
}
