// Package des is the discrete-event loop of all simulations. It runs events in order of time,
// without waiting between them. It is pure: times are float64 seconds since an origin that the
// caller chooses, and the same calls run the same events in the same order.
package des

// Loop is a queue of events with the current simulation time. The zero Loop is at time 0 and has no
// events. It is not safe for concurrent use.
type Loop struct {
	now   float64
	asked uint64
	queue queue
}

// Now returns the current simulation time: that of the running event, or of the last event.
func (l *Loop) Now() float64 { return l.now }

// Len returns the number of pending events.
func (l *Loop) Len() int { return len(l.queue) }

// At schedules the function do to run at a given time. If that time has passed, do runs as the next
// event. Events at the same time run in the order in which they were scheduled.
func (l *Loop) At(at float64, do func()) {
	l.asked++
	l.queue.push(entry{max(at, l.now), l.asked, do})
}

// Every runs the function do at a given time, and again after each interval until do returns false.
func (l *Loop) Every(at, interval float64, do func() (again bool)) {
	l.At(at, func() {
		if do() {
			l.Every(l.now+interval, interval, do)
		}
	})
}

// Run advances the simulation to a given time. It runs all events up to then, including those that
// events schedule, and then sets the current time.
func (l *Loop) Run(until float64) {
	for len(l.queue) > 0 && l.queue[0].at <= until {
		l.Step()
	}
	l.now = max(l.now, until)
}

// Step runs the next event. It returns false if there is none.
func (l *Loop) Step() bool {
	if len(l.queue) == 0 {
		return false
	}
	e := l.queue.pop()
	l.now = e.at
	e.do()
	return true
}

// queue is a binary heap of events, ordered by time. It does not use container/heap, which would
// convert each entry to an interface and take four times as long with four pending events.
type queue []entry

type entry struct {
	at     float64
	number uint64
	do     func()
}

func (e *entry) before(o *entry) bool { return e.at < o.at || e.at == o.at && e.number < o.number }

func (q *queue) push(e entry) {
	*q = append(*q, e)
	all := *q
	i := len(all) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&all[parent]) {
			break
		}
		all[i] = all[parent]
		i = parent
	}
	all[i] = e
}

func (q *queue) pop() entry {
	all := *q
	first, last := all[0], all[len(all)-1]
	all[len(all)-1] = entry{} // let the garbage collector free the event's closure
	all = all[:len(all)-1]
	*q = all
	if len(all) == 0 {
		return first
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(all) {
			break
		}
		if child+1 < len(all) && all[child+1].before(&all[child]) {
			child++
		}
		if !all[child].before(&last) {
			break
		}
		all[i] = all[child]
		i = child
	}
	all[i] = last
	return first
}
