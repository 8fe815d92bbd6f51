package pick

// wait is how long a tokenless request is expected to take at endpoints, for [Proposal] and [Latency]. Such a request costs its engine one run of its
// model, so that nothing is gained by sending several to one endpoint while another has less to do: neither policy packs them.
//
// Where the request's serviceTime is known, it takes as long as all requests that the endpoint has and its own: each that was sent by this process and
// whose serviceTime is known takes its own serviceTime, and each other one as long as this request. Where only requests of one model are there that is one
// more than they are, times the serviceTime. Where the serviceTime is not known, the endpoint with the fewest requests has it, and of those with as many
// the copy with the fewest. Among equals it is the copy that this process used longest ago, as in ModelMesh, and then the lot.
type wait struct {
	serviceTime int64 // nanoseconds; 0 where nobody knows it
}

// newWait is that of a request by a rule: only Latency compares times.
func newWait(r Rule, d Demand) (w wait) {
	if r == Latency {
		w.serviceTime = max(0, d.ServiceTime)
	}
	return w
}

// at is how long the request takes at an endpoint, in nanoseconds; how many there are with it where the serviceTime is not known.
func (w wait) at(e *Endpoint) int64 {
	there := e.Pending()
	if w.serviceTime == 0 {
		return there + 1
	}
	return e.Backlog.ServiceTimes.Load() + (max(0, there-e.Backlog.Timed.Load())+1)*w.serviceTime
}

// score is what is thought of the request at a copy, and why it would go there.
func (w wait) score(e *Endpoint, c *Copy) (score, string) {
	s := score{first: w.at(e), third: c.InFlight.Last.Load()}
	if w.serviceTime > 0 {
		return s, "least to do"
	}
	s.second = c.InFlight.Load() + c.InFlight.Others.Load()
	return s, "fewest requests"
}

// claim is that of the request: nothing where its serviceTime is not known, for it counts as long as whatever comes after it.
func (w wait) claim() Claim {
	if w.serviceTime == 0 {
		return Claim{}
	}
	return Claim{serviceTime: w.serviceTime, timed: 1}
}
