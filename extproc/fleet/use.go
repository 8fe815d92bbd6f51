package fleet

import "sync/atomic"

// Use reports which endpoints are used. It is safe for concurrent use.
type Use struct {
	call atomic.Pointer[func(address string)]
}

// Notify makes the Fleet call a function with the address of an endpoint when a request begins
// there, and when other processes report their first requests there. The function must be fast,
// must not call the Fleet, and must be safe for concurrent use.
func (u *Use) Notify(call func(address string)) { u.call.Store(&call) }

// report reports that an endpoint is used. The request must be counted before.
func (u *Use) report(address string) {
	if call := u.call.Load(); call != nil {
		(*call)(address)
	}
}
