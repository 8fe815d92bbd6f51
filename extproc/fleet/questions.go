package fleet

import "sync"

// maxAsking bounds how many requests wait for an answer at once.
const maxAsking = 1000

// questions are what requests for models that nothing admits ask control before they get a 404: whether all that control published is in
// force here. One question is for all requests that came before it was sent, whatever they name, so that invented names cost control
// little. It is safe for concurrent use.
type questions struct {
	news chan struct{} // capacity 1; never closed

	mu     sync.Mutex // guards the following
	able   bool       // control has answered a question of the stream: an older one answers none
	number uint64     // of the last question of the stream
	sent   *round     // that was not answered yet, nil if there is none
	next   *round     // that was not sent yet, nil if nobody asks
	asking int
}

// round is one question.
type round struct{ answered chan struct{} }

func newRound() *round { return &round{make(chan struct{})} }

func (q *questions) tell() {
	select {
	case q.news <- struct{}{}:
	default:
	}
}

// Answers says whether control is connected and answers questions.
func (f *Fleet) Answers() bool {
	q := &f.questions
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.able
}

// AskControl asks whether all that control has published by now is in force here. Answered is closed when it is, and never if the stream
// ends before; the caller calls done when it waits no more. Ok is false if control does not answer, or too many ask.
func (f *Fleet) AskControl() (answered <-chan struct{}, done func(), ok bool) {
	q := &f.questions
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.able || q.asking >= maxAsking {
		return nil, nil, false
	}
	q.asking++
	if q.next == nil {
		q.next = newRound()
		q.tell()
	}
	return q.next.answered, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.asking--
	}, true
}

// Questions is sent to when there is a question to be sent: see [Fleet.Question].
func (f *Fleet) Questions() <-chan struct{} { return f.questions.news }

// Question returns the number of the question that control is to answer: the first of a stream, that of the requests that ask now, or one that was
// sent and not answered yet.
func (f *Fleet) Question() uint64 {
	q := &f.questions
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sent == nil && (q.next != nil || q.number == 0) {
		q.number++
		if q.sent, q.next = q.next, nil; q.sent == nil {
			q.sent = newRound()
		}
	}
	return q.number
}

// Answered takes control's answer to a question; 0 is none.
func (f *Fleet) Answered(number uint64) {
	q := &f.questions
	q.mu.Lock()
	defer q.mu.Unlock()
	if number == 0 || number != q.number || q.sent == nil {
		return
	}
	q.able = true
	close(q.sent.answered)
	if q.sent = nil; q.next != nil {
		q.tell()
	}
}

// ForgetQuestions forgets what was asked on a stream that has ended.
func (f *Fleet) ForgetQuestions() {
	q := &f.questions
	q.mu.Lock()
	defer q.mu.Unlock()
	q.able, q.number, q.sent, q.next = false, 0, nil, nil
}
