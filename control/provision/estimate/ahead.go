package estimate

// ahead has the batches of a queue that fill whether or not a replica is idle.
type ahead struct {
	full  []closedBatch // closed batches in order; they hold the first queries of the queue
	open  int           // number of queries in the open batch, which follow those of the closed ones
	since float64       // arrival of the first query of the open batch
}

// closedBatch is a full batch that waits for a replica.
type closedBatch struct {
	size int
	at   float64
}

// gather adds the latest query to the open batch.
func (l *lane) gather() {
	a, s, now := &l.ahead, l.stage, l.stage.run.loop.Now()
	if a.open++; a.open == 1 {
		a.since = now
	}
	if a.open == s.Batch {
		l.close()
		return
	}
	l.setTimer(a.since + s.Wait)
}

// expire closes the open batch if its first query has waited for the batching delay.
func (l *lane) expire() {
	switch a, due := &l.ahead, l.ahead.since+l.stage.Wait; {
	case a.open == 0:
	case l.stage.run.loop.Now() >= due:
		l.close()
	default: // the timer was set for an earlier batch
		l.setTimer(due)
	}
}

// close closes the open batch.
func (l *lane) close() {
	a := &l.ahead
	a.full = append(a.full, closedBatch{a.open, l.stage.run.loop.Now()})
	a.open = 0
}

// dispatchClosed starts closed batches on idle replicas.
func (l *lane) dispatchClosed() {
	a := &l.ahead
	for len(a.full) > 0 && l.hasRoom() {
		next := a.full[0]
		a.full = a.full[1:]
		l.start(next.size, 0, next.at)
	}
}
