package controller

import (
	"sync"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/order"
)

// Answers queues the answers of Envoys until a Controller takes them. It is safe for concurrent
// use. Make one with [NewAnswers].
type Answers struct {
	news chan struct{} // capacity 1: there are answers

	mu  sync.Mutex // guards the following
	all []answer
}

// answer is an answer, the end of a stream, or the last change (above 0) that an Envoy has
// completely.
type answer struct {
	from ads.Envoy
	order.Answer
	disconnected bool
	settled      uint64
}

// NewAnswers returns an empty queue.
func NewAnswers() *Answers { return &Answers{news: make(chan struct{}, 1)} }

// Answered implements [ads.Config]. It ignores answers about endpoints.
func (a *Answers) Answered(from ads.Envoy, is order.Answer) {
	if is.Type != order.Endpoints {
		a.add(answer{from: from, Answer: is})
	}
}

// Settled implements [ads.Config].
func (a *Answers) Settled(who ads.Envoy, change uint64) { a.add(answer{from: who, settled: change}) }

// Disconnected implements [ads.Config].
func (a *Answers) Disconnected(who ads.Envoy) { a.add(answer{from: who, disconnected: true}) }

func (a *Answers) add(s answer) {
	a.mu.Lock()
	a.all = append(a.all, s)
	a.mu.Unlock()
	select {
	case a.news <- struct{}{}:
	default: // the Controller has not read since the last one
	}
}

// take returns the queued answers, in order per Envoy.
func (a *Answers) take() []answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}
