package limits

import (
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/limits/bucket"
	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/placementproto"
)

const (
	// alone is how long a process that never had a part waits for control. Then control is away,
	// and the process uses each whole limit until it hears of its part: rejecting all requests for
	// the rest of the outage would be worse than a limit that is exceeded.
	alone = 10 * time.Second
	// forgotten is how long a process waits for a silent control before it uses its new part. By
	// then, control has given the old part to others, or is away.
	forgotten = 40 * time.Second
)

// minute is the time in which an empty bucket is refilled.
const minute = time.Minute

// shares is the state of the exchange with control. Its zero value is that of a process that shares
// nothing.
type shares struct {
	shared bool // several processes share limits
	parts  bucket.Parts
	since  time.Duration // when control last sent something, or Shared was called

	epoch            uint64 // of the share that was heard last
	members          uint32
	index, processes uint32 // of the last share that was all in force
	probe, echo      uint64
	sent             time.Duration // when the probe was sent
	lease            time.Duration
	reported         time.Duration // when the last report was made

	low bucket.Part   // the smallest part within a minute before at
	at  time.Duration // when the part last changed
}

// changed records that the part was is no longer in force.
func (s *shares) changed(was bucket.Part, now time.Duration) {
	if now-s.at >= minute || was.To-was.From < s.low.To-s.low.From {
		s.low = was
	}
	s.at = now
}

// Shared makes this process share its limits with others: it may use nothing of a limit until
// control has reported its part, or has been silent for alone. Call it before any other method.
func (b *Book) Shared() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.part = bucket.Part{}
	b.shares = shares{shared: true, since: b.now()}
}

// Share records the index of this process among the processes that share limits, as reported by a
// control that does not divide limits by demand. Each gets an equal part. While control is away,
// the last part holds.
func (b *Book) Share(index, processes int) {
	if processes < 1 || index < 0 || index >= processes {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shares.since = b.now()
	b.shares.parts.Hear(bucket.Equal(index, processes), b.shares.since)
	b.settle()
}

// settle puts the part of this process in force. The caller holds mu.
func (b *Book) settle() {
	if !b.shares.shared {
		return
	}
	now := b.now()
	silent := now - b.shares.since
	if silent >= forgotten && b.shares.processes > 0 {
		b.shares.parts.Grow()
	}
	part := b.shares.parts.At(now)
	away := part == bucket.Part{} && b.shares.processes == 0 && silent >= alone
	if away {
		part = bucket.Whole()
	}
	if part == b.part {
		return
	}
	if b.setPart(part, now); away {
		b.fill()
	}
}

// fill fills all buckets. The caller holds mu.
func (b *Book) fill() {
	b.shares.low = b.part
	for _, r := range b.routes {
		r.Fill()
	}
}

// newRoute adds a route. Its buckets are not full if this process got its part within the last
// minute, because others may have used that part. The caller holds mu.
func (b *Book) newRoute(name objects.Name, l bucket.Limits, now time.Duration) *bucket.Route {
	first, seed := b.part, hash.Of(name.String())
	if low := b.shares.low; b.shares.shared && now-b.shares.at < minute && low.To-low.From < first.To-first.From {
		first = low
	}
	r := bucket.New(l, first, seed)
	r.SetPart(b.part, b.shares.at)
	r.Lease(b.shares.lease)
	b.routes[name] = r
	return r
}

// Connect begins a stream to control, which has received nothing on it.
func (b *Book) Connect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shares.probe, b.shares.echo = 0, 0
	for _, r := range b.routes {
		r.Connect()
	}
}

// Report returns the news for control. It is called several times a second. Without limited routes,
// it returns nil unless a second has passed.
func (b *Book) Report() *placement.LimitsReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settle()
	now, s := b.now(), &b.shares
	if len(b.routes) == 0 && s.probe > 0 && now-s.reported < time.Second {
		return nil
	}
	return b.report(now)
}

// Leave returns the last report of this process, which uses nothing any more.
func (b *Book) Leave() *placement.LimitsReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.report(b.now())
	r.Ended = true
	return r
}

// report creates a Report. The caller holds mu.
func (b *Book) report(now time.Duration) *placement.LimitsReport {
	s := &b.shares
	s.reported = now
	if s.echo == s.probe {
		s.probe++
		s.sent = now
	}
	r := &placement.LimitsReport{Probe: s.probe, Epoch: s.epoch, Index: s.index, Processes: s.processes, Members: s.members}
	for name, route := range b.routes {
		for _, u := range route.Uses(now) {
			r.Uses = append(r.Uses, wireUse(name.String(), u))
		}
		if route.Loans() == 0 && !route.Limited() {
			delete(b.routes, name)
		}
	}
	return r
}

func wireUse(route string, u bucket.Use) *placement.LimitUse {
	w := &placement.LimitUse{
		Route: route, Tenant: u.Tenant, Whole: u.Whole, Division: u.Division, Limit: u.Limit[:], Want: u.Want[:], Unit: u.Unit[:],
	}
	if u.Division > 0 {
		w.Held, w.Seen, w.Spent, w.Own = u.Held[:], u.Seen[:], u.Spent[:], u.Refill[:]
	}
	return w
}

// Hear applies an update from control. It reports whether control waits for a Report.
func (b *Book) Hear(u *placement.LimitsUpdate) (urgent bool) {
	if u == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settle()
	now, s := b.now(), &b.shares
	s.since = now
	if u.GetEcho() == s.probe && s.echo < s.probe {
		s.echo, s.lease = s.probe, max(s.lease, s.sent+placementproto.LimitsLease)
		for _, r := range b.routes {
			r.Lease(s.lease)
		}
	}
	for _, p := range u.GetParts() {
		name, ok := objects.ParseName(p.GetRoute())
		if !ok {
			continue
		}
		r := b.routes[name]
		if r == nil {
			var l bucket.Limits
			if b.world != nil {
				if s := b.world.SharingOf(name); s != nil {
					l = limitsOf(s)
				}
			}
			r = b.newRoute(name, l, now)
		}
		urgent = r.Hear(bucket.Lent{
			Key: bucket.Key{Tenant: p.GetTenant(), Whole: p.GetWhole()}, Division: p.GetDivision(), Released: p.GetReleased(),
			Lent: amounts(p.GetLent()), Target: amounts(p.GetTarget()), Left: amounts(p.GetLeft()),
		}, now) || urgent
	}
	if is := u.GetShare(); is != nil && is.GetIndex() < is.GetProcesses() {
		urgent = b.hearShare(is, now) || urgent
	}
	return urgent
}

func amounts(of []int64) (a bucket.Amounts) {
	copy(a[:], of)
	return a
}

// hearShare applies the equal part of this process. The caller holds mu.
func (b *Book) hearShare(is *placement.LimitShare, now time.Duration) (urgent bool) {
	s := &b.shares
	fresh := is.GetEpoch() != s.epoch
	s.epoch, s.members = is.GetEpoch(), is.GetProcesses()
	s.parts.Shrink(bucket.Equal(int(is.GetIndex()), int(is.GetProcesses())))
	if is.GetGrow() {
		s.parts.Grow()
		s.index, s.processes = is.GetIndex(), is.GetProcesses()
	}
	was := b.part
	if part := s.parts.At(now); part != was {
		b.setPart(part, now)
	}
	if is.GetFull() && is.GetGrow() && was == (bucket.Part{}) {
		b.fill()
	}
	return fresh
}
