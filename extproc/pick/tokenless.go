package pick

// wait predicts how long a tokenless request takes at endpoints, for [Proposal] and [Latency]. Such
// a request costs its engine one inference, so neither policy packs them.
//
// With a known service time, the prediction is the sum of the service times at the endpoint. A
// request without one counts as long as this request. Otherwise the endpoint with the fewest
// requests is best, then the copy with the fewest. Ties go to the copy that this process used
// longest ago, as in ModelMesh, and are then broken at random.
type wait struct {
	serviceTime int64 // nanoseconds; 0 if unknown
}

// newWait returns the wait for a request. Only Latency compares times.
func newWait(r Rule, d Demand) (w wait) {
	if r == Latency {
		w.serviceTime = max(0, d.ServiceTime)
	}
	return w
}

// at returns the predicted nanoseconds at an endpoint, or with an unknown service time the number
// of requests there with this one.
func (w wait) at(e *Endpoint) int64 {
	there := e.Pending()
	if w.serviceTime == 0 {
		return there + 1
	}
	return e.Backlog.ServiceTimes.Load() + (max(0, there-e.Backlog.Timed.Load())+1)*w.serviceTime
}

// score returns the rating of a copy, and the reason to choose it.
func (w wait) score(e *Endpoint, c *Copy) (score, string) {
	s := score{first: w.at(e), third: c.InFlight.Last.Load()}
	if w.serviceTime > 0 {
		return s, "least to do"
	}
	s.second = c.InFlight.Load() + c.InFlight.Others.Load()
	return s, "fewest requests"
}

// claim returns the claim of the request: zero without a service time, since it then counts as long
// as the next request.
func (w wait) claim() Claim {
	if w.serviceTime == 0 {
		return Claim{}
	}
	return Claim{serviceTime: w.serviceTime, timed: 1}
}
