package pick

// wait predicts how long a tokenless request takes at an endpoint, for [Proposal] and [Latency].
// Such a request costs the engine one inference wherever it runs, so these policies do not send
// requests for one model to the same endpoint on purpose.
//
// If the request's service time is known, the prediction is the sum of the service times of all
// requests at the endpoint. A request whose service time is unknown adds as much as this request.
// If this request's service time is unknown, the endpoint with the fewest requests is best, then
// the copy with the fewest. Ties go to the copy that this process has not used for the longest
// time, as in ModelMesh. Remaining ties are broken at random.
type wait struct {
	serviceTime int64 // nanoseconds; 0 if unknown
}

// newWait returns the wait of a request. Only policy Latency compares times.
func newWait(r Rule, d Demand) (w wait) {
	if r == Latency {
		w.serviceTime = max(0, d.ServiceTime)
	}
	return w
}

// at returns the predicted time at an endpoint, in nanoseconds. If the service time is unknown, at
// returns the number of requests there, including this one.
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

// claim returns what the request adds to the Backlog. It is zero if the service time is unknown:
// later requests then assume their own service time for this request.
func (w wait) claim() Claim {
	if w.serviceTime == 0 {
		return Claim{}
	}
	return Claim{serviceTime: w.serviceTime, timed: 1}
}
