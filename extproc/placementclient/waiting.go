package placementclient

import (
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/internal/objects"
)

// bandKey identifies a band of a pool.
type bandKey struct {
	pool objects.Name
	band int32
}

// waiting returns the report of what waits in this process.
func (t *connection) waiting() []*placement.Waiting {
	if t.Flow.Turns == nil {
		return nil
	}
	t.Flow.Turns.Wait(t.Flow.Own())
	return t.reporter.waits(t.Flow.Turns.Lines())
}

// waits creates the report of the bands that have changed.
func (t *reporter) waits(all []flow.Line) []*placement.Waiting {
	var out []*placement.Waiting
	there := make(map[bandKey]bool, len(all))
	for _, is := range all {
		key := bandKey{is.Pool, is.Band}
		if there[key] = true; t.turns[key] == is.Line {
			continue
		}
		t.turns[key] = is.Line
		out = append(out, &placement.Waiting{
			Pool: is.Pool.String(), Band: is.Band, Requests: uint32(is.Requests), Share: is.Share, Passes: is.Passes,
			Seconds: is.Seconds, Tokens: is.Tokens,
		})
	}
	for key := range t.turns {
		if !there[key] {
			delete(t.turns, key)
			out = append(out, &placement.Waiting{Pool: key.pool.String(), Band: key.band})
		}
	}
	return out
}

// hearWaiting applies what waits in other processes. It ignores entries without a pool.
func (t *connection) hearWaiting(u *placement.Update) {
	if t.Flow.Turns == nil || len(u.GetWaiting()) == 0 {
		return
	}
	var all []flow.Others
	for _, w := range u.GetWaiting() {
		pool, ok := objects.ParseName(w.GetPool())
		if !ok {
			continue
		}
		all = append(all, flow.Others{Pool: pool, Band: w.GetBand(), Others: turns.Others{
			Requests: w.GetRequests(), Share: w.GetShare(), Before: w.GetBefore(), After: w.GetAfter(),
			Service: turns.Service{Seconds: w.GetSeconds(), Tokens: w.GetTokens()},
		}})
	}
	t.Flow.Turns.Hear(all, time.Duration(u.GetClockUs())*time.Microsecond) //nolint:gosec // control's clock since its start
}
