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
	all []said
}

// said is an answer, the end of a stream, or the last change (above 0) that an Envoy has
// completely.
type said struct {
	from ads.Envoy
	order.Answer
	left    bool
	settled uint64
}

// NewAnswers returns an empty queue.
func NewAnswers() *Answers { return &Answers{news: make(chan struct{}, 1)} }

// Heard implements [ads.Config]. It ignores answers about endpoints.
func (a *Answers) Heard(from ads.Envoy, is order.Answer) {
	if is.Type != order.Endpoints {
		a.add(said{from: from, Answer: is})
	}
}

// Settled implements [ads.Config].
func (a *Answers) Settled(who ads.Envoy, change uint64) { a.add(said{from: who, settled: change}) }

// Left implements [ads.Config].
func (a *Answers) Left(who ads.Envoy) { a.add(said{from: who, left: true}) }

func (a *Answers) add(s said) {
	a.mu.Lock()
	a.all = append(a.all, s)
	a.mu.Unlock()
	select {
	case a.news <- struct{}{}:
	default: // the Controller has not read since the last one
	}
}

// take returns the queued answers, in order per Envoy.
func (a *Answers) take() []said {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}
