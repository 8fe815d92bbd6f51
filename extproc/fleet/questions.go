package fleet

import "sync"

// maxAsking bounds the number of requests that wait for an answer of control at the same time.
const maxAsking = 1000

// questions delays the 404 for unknown models until control has confirmed that this process has its
// latest updates. One question serves all requests that arrived before it was sent, so that
// requests for invented names cost control little. It is safe for concurrent use.
type questions struct {
	news chan struct{} // capacity 1; never closed

	mu     sync.Mutex // guards the fields below
	able   bool       // whether control answers questions on this stream
	number uint64     // number of the stream's last question
	sent   *round     // unanswered question; nil if none
	next   *round     // question that is not sent yet; nil if none
	asking int
}

// round is one question, shared by the requests that ask it.
type round struct{ answered chan struct{} }

func newRound() *round { return &round{make(chan struct{})} }

func (q *questions) wake() {
	select {
	case q.news <- struct{}{}:
	default:
	}
}

// Answers reports whether control is connected and answers questions.
func (f *Fleet) Answers() bool {
	q := &f.questions
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.able
}

// AskControl asks control whether this process has all updates that control has published so far.
// The channel answered is closed when it has them; it stays open if the stream ends first. The
// caller calls done when it stops waiting. Ok is false if control does not answer questions or too
// many requests wait.
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
		q.wake()
	}
	return q.next.answered, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.asking--
	}, true
}

// Questions returns a channel that receives a value when there is a question to send: see
// [Fleet.Question].
func (f *Fleet) Questions() <-chan struct{} { return f.questions.news }

// Question returns the number of the question to send. It is a new number at the start of a stream
// or if requests wait for a question, and otherwise the number of the unanswered question.
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

// Answered records control's answer to the question with this number; 0 means no answer.
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
		q.wake()
	}
}

// ForgetQuestions deletes all questions after their stream has ended.
func (f *Fleet) ForgetQuestions() {
	q := &f.questions
	q.mu.Lock()
	defer q.mu.Unlock()
	q.able, q.number, q.sent, q.next = false, 0, nil, nil
}
