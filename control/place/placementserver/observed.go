package placementserver

import (
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/internal/objects"
)

// maxReason limits the bytes of a reason that control keeps for each endpoint.
const maxReason = 100

// observed returns the states of endpoints in a Report.
func observed(states []*placement.EndpointState, now time.Time) map[string]conditions.Endpoint {
	all := make(map[string]conditions.Endpoint, len(states))
	for _, s := range states {
		is := conditions.Endpoint{Reason: s.GetReason()}
		is.Since = now.Add(-time.Duration(s.GetForMs()) * time.Millisecond) //nolint:gosec // a wrong one misleads people only
		switch s.GetState() {
		case placement.EndpointState_OUT:
			is.State = conditions.Out
		case placement.EndpointState_SUSPECT:
			is.State = conditions.Suspect
		case placement.EndpointState_SERVING:
			is.State = conditions.Serving
		case placement.EndpointState_UNKNOWN:
			is = conditions.Endpoint{}
		}
		if len(is.Reason) > maxReason {
			is.Reason = is.Reason[:maxReason]
		}
		all[s.GetEndpoint()] = is
	}
	return all
}

// extprocOf returns what a Report says of the extproc; nil if it says nothing.
func extprocOf(process string, is *placement.DataPlane) *conditions.Extproc {
	if is == nil {
		return nil
	}
	pool, _ := objects.ParseName(is.GetPool())
	return &conditions.Extproc{Process: process, Standalone: is.GetStandalone(), Picker: is.GetPicker(), Pool: pool}
}
