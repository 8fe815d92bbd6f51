package estimate

// ahead are the batches of a queue that fill whether or not a replica is free.
type ahead struct {
	full []filled // those that take no further query, in order: of the queue's first
	open int      // queries of the one that fills, which come after those
	made int      // batches
}

// filled is a batch that waits for a replica.
type filled struct {
	size int
	at   float64
}

// gather has the query that came last be of the batch that fills.
func (l *lane) gather() {
	a, s := &l.ahead, l.stage
	a.open++
	switch {
	case a.open == s.Batch:
		l.close()
	case a.open == 1:
		this := a.made
		s.run.loop.At(s.run.loop.Now()+s.Wait, func() {
			if a.made == this {
				l.close()
				l.takeTurns()
			}
		})
	}
}

// close has the batch that fills take no further query.
func (l *lane) close() {
	a := &l.ahead
	a.full = append(a.full, filled{a.open, l.stage.run.loop.Now()})
	a.open = 0
	a.made++
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
