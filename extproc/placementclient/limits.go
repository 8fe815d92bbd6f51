package placementclient

import (
	"time"

	"github.com/headgate/headgate/api/placement"
)

// leaveLimit is how long the end of a stream may take.
const leaveLimit = 500 * time.Millisecond

// hearLimits applies what this process may use of limits of routes. It returns whether control
// waits for a report. A control that does not divide these limits by demand reports only the share
// of limits of copies.
func (t *connection) hearLimits(u *placement.Update) (urgent bool) {
	if t.Limits == nil {
		return false
	}
	if is := u.GetShare(); is != nil && !is.GetLimits() {
		t.Limits.Share(int(is.GetIndex()), int(is.GetProcesses()))
	}
	return t.Limits.Hear(u.GetLimits())
}

// leave reports that this process has ended, so that others get its part of limits at once. It
// waits for a short time until control has received that. Ended receives the end of the stream.
func (t *connection) leave(ended <-chan error) {
	if t.Limits == nil {
		return
	}
	limit := time.NewTimer(leaveLimit)
	defer limit.Stop()
	last := t.Limits.Leave()
	sent := make(chan struct{})
	go func() { // ends with the stream at the latest
		defer close(sent)
		if t.stream.Send(&placement.Report{
			Process: t.process, Applied: t.acknowledged, Question: t.question, Limits: last,
		}) == nil {
			_ = t.stream.CloseSend()
		}
	}()
	select {
	case <-sent:
	case <-limit.C:
		return
	}
	select {
	case <-ended: //nolint:errcheck // the stream ends either way
	case <-limit.C:
	}
}
