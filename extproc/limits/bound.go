package limits

// Believed is a number of tokens that an engine may report for any request.
const Believed = 4096

// Bound sets a function that returns the largest number of tokens that the request can have. An
// engine that reports more is wrong, and this number counts instead. The function is called only
// for more than [Believed] tokens. It may be called from any goroutine, until the request is
// settled. Bound must be called before Sent.
func (t *Ticket) Bound(most func() int64) {
	if t != nil {
		t.most = most
	}
}

// bounded returns tokens, or the largest possible number if that is smaller. The caller does not
// hold mu.
func (t *Ticket) bounded(tokens int64) int64 {
	if t.most == nil || tokens <= Believed {
		return tokens
	}
	return min(tokens, t.most())
}
