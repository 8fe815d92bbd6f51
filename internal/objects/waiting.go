package objects

import "github.com/headgate/headgate/api/v1alpha1"

// HoldsWhileEmpty reports whether requests wait while the pool has no endpoint that may get them.
func (p *Pool) HoldsWhileEmpty() bool {
	s := p.Settings
	if s == nil || s.Timeouts == nil || s.Timeouts.Empty == nil || s.Timeouts.Empty.Duration <= 0 {
		return false
	}
	return s.Flow == nil || s.Flow.Mode != v1alpha1.FlowOff
}
