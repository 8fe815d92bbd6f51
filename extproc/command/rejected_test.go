package command

import (
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/api/admin"
)

// The report has the first faults, each not too long, and the number of all.
func TestRejections(t *testing.T) {
	var r rejections
	report := func() (is admin.EndpointsResult) {
		r.report(&is)
		return is
	}
	if is := report(); is.Rejected != nil || is.RejectedFiles != 0 {
		t.Errorf("before the objects are read: %+v", is)
	}
	r.set(slices.Repeat([]string{strings.Repeat("x", 2*maxFault)}, 2*admin.MaxRejected))
	is := report()
	if len(is.Rejected) != admin.MaxRejected || is.RejectedFiles != 2*admin.MaxRejected || len(is.Rejected[0]) > maxFault+10 {
		t.Errorf("many faults: %d of %d, with %d bytes", len(is.Rejected), is.RejectedFiles, len(is.Rejected[0]))
	}
	r.set(nil)
	if is := report(); is.Rejected != nil || is.RejectedFiles != 0 {
		t.Errorf("after they are corrected: %+v", is)
	}
}
