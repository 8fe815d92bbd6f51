package stream

import (
	"net/http"
	"strconv"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/objects"
)

// This file rejects requests on arrival that would wait too long in the queue.

// longestWait returns the longest wait after which the request is still in time; 0 if there is no
// limit, if the request has waited before, or if the pool's flow is off. The limit is the client's
// own deadline, and with late: Shed also the route's objective for the time to the first token.
func longestWait(d *dispatcher) time.Duration {
	if d.spent > 0 || !d.settings.Flow {
		return 0
	}
	longest := d.in.deadline()
	if !d.target.Sharing.Or().Shed {
		return longest
	}
	for _, o := range d.target.Objectives {
		if value := o.Latency.Value.Duration; o.Type == v1alpha1.TimeToFirstToken && (longest == 0 || value < longest) {
			longest = value
		}
	}
	return longest
}

// identify sets a hash by which the request is recognized when its client retries. It costs time
// only while other requests wait.
func identify(d *dispatcher, body []byte) {
	if f := d.server.Flow; body != nil && f != nil && f.Any() && longestWait(d) > 0 {
		d.identity = identityOf(d.in, d.target.Sharing.Or(), body)
	}
}

// identityOf returns a hash of a request's body and of what is known about its client. It is not 0.
func identityOf(r *request, is objects.Sharing, body []byte) uint64 {
	id := hash.Of(body)
	for _, name := range [...]string{is.TenantHeader, is.ProgramHeader, wire.ClientHeader} {
		id = hash.Fold(id, r.hashOf(name))
	}
	return max(1, id)
}

// lateReply returns the reply to a request that would be late.
func lateReply(l flow.Late) *apiError {
	seconds := int((l.Retry + time.Second - 1) / time.Second)
	return &apiError{
		status: http.StatusTooManyRequests, Type: rateLimited, Code: "too_late", retryAfter: seconds,
		Message: "The model %s is too busy to serve the request in time. Try again in " + strconv.Itoa(seconds) + " s.",
	}
}
