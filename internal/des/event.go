// Package des is the discrete-event loop of every simulation: it runs events in order of time, as
// fast as it can. It is pure: time is float64 seconds since an origin that the caller chooses, and
// the same calls give the same order.
package des

// Loop is a queue of events. The zero Loop is at time 0 without events. It is not safe for
// concurrent use.
type Loop struct {
	now   float64
	asked uint64
	queue queue
}

// Now returns the time of the current or last event.
func (l *Loop) Now() float64 { return l.now }

// Len returns the number of pending events.
func (l *Loop) Len() int { return len(l.queue) }

// At schedules do at a time, or as the next event if that time has passed. Events at the same time
// run in the order in which they were scheduled.
func (l *Loop) At(at float64, do func()) {
	l.asked++
	l.queue.push(entry{max(at, l.now), l.asked, do})
}

// Every calls do at a time, and again after each interval, until it returns false.
func (l *Loop) Every(at, interval float64, do func() (again bool)) {
	l.At(at, func() {
		if do() {
			l.Every(l.now+interval, interval, do)
		}
	})
}

// Run runs events until a time, or until there are none, and sets the time to until. Events may
// schedule more.
func (l *Loop) Run(until float64) {
	for len(l.queue) > 0 && l.queue[0].at <= until {
		l.Step()
	}
	l.now = max(l.now, until)
}

// Step runs the next event, and returns false if there is none.
func (l *Loop) Step() bool {
	if len(l.queue) == 0 {
		return false
	}
	e := l.queue.pop()
	l.now = e.at
	e.do()
	return true
}

// queue is a binary heap by time. container/heap would make each entry an interface; with four
// events a step here takes a fourth of the time.
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
	all[len(all)-1] = entry{} // release the closure
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
