// Package des is the loop of every simulation: it does what is to be done in order of time, as fast as it can. It is pure: time is
// float64 seconds since an origin that the caller chooses, and the same calls give the same order.
package des

// Loop has what is still to be done. The zero Loop is at time 0, with nothing to do. It is used from one goroutine.
type Loop struct {
	now   float64
	asked uint64
	queue queue
}

// Now is the time of what is being done, or was done last.
func (l *Loop) Now() float64 { return l.now }

// Len is how much is still to be done.
func (l *Loop) Len() int { return len(l.queue) }

// At has something done at a time, or next where that has passed. Of what is to be done at the same time, what was asked for first is done
// first.
func (l *Loop) At(at float64, do func()) {
	l.asked++
	l.queue.push(entry{max(at, l.now), l.asked, do})
}

// Every has something done at a time, and again after each interval, until it reports false.
func (l *Loop) Every(at, interval float64, do func() (again bool)) {
	l.At(at, func() {
		if do() {
			l.Every(l.now+interval, interval, do)
		}
	})
}

// Run does what is to be done until a time, which it is then, or until there is nothing. What is done may ask for more.
func (l *Loop) Run(until float64) {
	for len(l.queue) > 0 && l.queue[0].at <= until {
		l.Step()
	}
	l.now = max(l.now, until)
}

// Step does what is to be done next, and reports false where there is nothing.
func (l *Loop) Step() bool {
	if len(l.queue) == 0 {
		return false
	}
	e := l.queue.pop()
	l.now = e.at
	e.do()
	return true
}

// queue is a heap in order of time. It is not that of container/heap, which makes each entry an interface: with four things to do a step takes
// a fourth of the time.
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
	all[len(all)-1] = entry{} // nothing keeps what it would do
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
