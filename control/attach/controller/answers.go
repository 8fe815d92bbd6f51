package controller

import (
	"sync"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/order"
)

// Answers queues the answers of Envoys until a Controller takes them. It is safe for concurrent
// use. Make one with [NewAnswers].
type Answers struct {
	news chan struct{} // signals queued answers; capacity 1

	mu  sync.Mutex // guards the fields below
	all []answer
}

// answer is one of three events of an Envoy: an ACK or NACK; the end of its stream; or, if settled
// is above 0, that it has answered all resources up to the change with this number.
type answer struct {
	from ads.Envoy
	order.Answer
	disconnected bool
	settled      uint64
}

// NewAnswers returns an empty queue.
func NewAnswers() *Answers { return &Answers{news: make(chan struct{}, 1)} }

// Answered implements the callback of [ads.Config]. It ignores answers to endpoints.
func (a *Answers) Answered(from ads.Envoy, is order.Answer) {
	if is.Type != order.Endpoints {
		a.add(answer{from: from, Answer: is})
	}
}

// Settled implements the callback of [ads.Config].
func (a *Answers) Settled(who ads.Envoy, change uint64) { a.add(answer{from: who, settled: change}) }

// Disconnected implements the callback of [ads.Config].
func (a *Answers) Disconnected(who ads.Envoy) { a.add(answer{from: who, disconnected: true}) }

func (a *Answers) add(s answer) {
	a.mu.Lock()
	a.all = append(a.all, s)
	a.mu.Unlock()
	select {
	case a.news <- struct{}{}:
	default: // the Controller has not read the last signal yet
	}
}

// take removes and returns the queued answers. Those of one Envoy are in order.
func (a *Answers) take() []answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}
