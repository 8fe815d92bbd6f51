package command

import (
	"sync/atomic"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/internal/display"
)

// rejections are the faults of the object files that this process has rejected. The zero value has
// none. It is safe for concurrent use.
type rejections struct{ faults atomic.Pointer[[]string] }

// maxFault is the maximum length of a fault in characters.
const maxFault = 500

func (r *rejections) set(faults []string) { r.faults.Store(&faults) }

// report adds the faults to the state of the endpoints.
func (r *rejections) report(to *admin.EndpointsResult) {
	all := r.faults.Load()
	if all == nil {
		return
	}
	to.RejectedFiles = len(*all)
	for _, fault := range (*all)[:min(len(*all), admin.MaxRejected)] {
		to.Rejected = append(to.Rejected, display.Cut(fault, maxFault))
	}
}
