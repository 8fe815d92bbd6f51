package estimate

// ahead are the batches of a queue that fill whether or not a replica is free.
type ahead struct {
	full  []filled // those that take no further query, in order: of the queue's first
	open  int      // queries of the one that fills, which come after those
	since float64  // when the first of them came
}

// filled is a batch that waits for a replica.
type filled struct {
	size int
	at   float64
}

// gather puts the query that came last into the open batch.
func (l *lane) gather() {
	a, s, now := &l.ahead, l.stage, l.stage.run.loop.Now()
	if a.open++; a.open == 1 {
		a.since = now
	}
	if a.open == s.Batch {
		l.close()
		return
	}
	l.lookAt(a.since + s.Wait)
}

// expire ends the open batch if its first query has waited long enough.
func (l *lane) expire() {
	switch a, due := &l.ahead, l.ahead.since+l.stage.Wait; {
	case a.open == 0:
	case l.stage.run.loop.Now() >= due:
		l.close()
	default: // it is a later one than that for which somebody was to look
		l.lookAt(due)
	}
}

// close ends the open batch.
func (l *lane) close() {
	a := &l.ahead
	a.full = append(a.full, filled{a.open, l.stage.run.loop.Now()})
	a.open = 0
}

// takeTurns has replicas that are idle take batches.
func (l *lane) takeTurns() {
	a := &l.ahead
	for len(a.full) > 0 && l.hasRoom() {
		next := a.full[0]
		a.full = a.full[1:]
		l.start(next.size, 0, next.at)
	}
}
