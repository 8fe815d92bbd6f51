package estimate

// ahead contains the batches of a queue whose batches fill even if no replica is idle.
type ahead struct {
	full  []closedBatch // closed batches in order; their queries are the first in the lane's queue
	open  int           // number of queries in the open batch; in the queue they follow the closed batches
	since float64       // arrival time of the first query in the open batch
}

// closedBatch is a batch that accepts no more queries and waits for a replica.
type closedBatch struct {
	size int
	at   float64
}

// gather adds the query that has just arrived to the open batch.
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
