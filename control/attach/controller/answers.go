package controller

import (
	"sync"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/order"
)

// Answers are what Envoys say of what they were sent, until a Controller takes it up. They are safe for concurrent use. Make them with
// [NewAnswers].
type Answers struct {
	news chan struct{} // capacity 1: there is something

	mu  sync.Mutex // guards the following
	all []said
}

// said is an answer, that an Envoy has left, or that it has all up to a change, which is above 0 then.
type said struct {
	from ads.Envoy
	order.Answer
	left    bool
	settled uint64
}

// NewAnswers returns Answers of nobody.
func NewAnswers() *Answers { return &Answers{news: make(chan struct{}, 1)} }

// Heard is for [ads.Config]. Answers about endpoints are passed over.
func (a *Answers) Heard(from ads.Envoy, is order.Answer) {
	if is.Type != order.Endpoints {
		a.add(said{from: from, Answer: is})
	}
}

// Settled is for [ads.Config].
func (a *Answers) Settled(who ads.Envoy, change uint64) { a.add(said{from: who, settled: change}) }

// Left is for [ads.Config].
func (a *Answers) Left(who ads.Envoy) { a.add(said{from: who, left: true}) }

func (a *Answers) add(s said) {
	a.mu.Lock()
	a.all = append(a.all, s)
	a.mu.Unlock()
	select {
	case a.news <- struct{}{}:
	default: // the Controller has not looked since the last
	}
}

// take returns what there is, in the order in which each Envoy said it.
func (a *Answers) take() []said {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}
