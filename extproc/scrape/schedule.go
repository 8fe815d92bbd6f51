package scrape

import "time"

// idleInterval is the time between two scrapes of an endpoint that nothing uses. Its load does not
// change without requests, and it may be gone for at most this time before extproc knows. It equals
// the default interval of model lists, which must be read anyway.
const idleInterval = time.Second

// idleEvery returns the time between two scrapes of an idle endpoint, from the intervals of its
// load and of its models: the models are not read less often than usual.
func idleEvery(load, models time.Duration) time.Duration {
	return max(load, min(models, idleInterval))
}

// next returns the first time after now at which an endpoint is scraped that is scraped once every
// interval. The hash of its address determines when in the interval that is.
func next(now time.Time, every time.Duration, hash uint64) time.Time {
	phase := time.Duration(hash % uint64(every))
	sincePhase := time.Duration(now.UnixNano()-int64(phase)) % every
	return now.Add(every - sincePhase)
}

// listDue reports whether the list of models is due in a scrape that begins now. Scrapes do not
// begin exactly on time, so a list that would be due before half of an interval of the load has
// passed is due now.
func listDue(now, read time.Time, load, models time.Duration) bool {
	return now.Sub(read) >= models-min(load, models)/2
}
