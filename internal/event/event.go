// Package event is the loop of every simulation: it does what is to be done in order of time, as fast as it can. It is pure: time is
// float64 seconds since an origin that the caller chooses, and the same calls give the same order.
package event

import "container/heap"

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
	heap.Push(&l.queue, entry{max(at, l.now), l.asked, do})
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
	e := heap.Pop(&l.queue).(entry)
	l.now = e.at
	e.do()
	return true
}

// queue is a heap in order of time.
type queue []entry

type entry struct {
	at     float64
	number uint64
	do     func()
}

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].number < q[j].number
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(e any)   { *q = append(*q, e.(entry)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = entry{}
	*q = (*q)[:last]
	return e
}
