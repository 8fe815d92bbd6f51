package fleet

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// storedPrefix is the prefix of the ids of responses that engines store (OpenAI's responses API).
const storedPrefix = "resp_"

// began passes the delay of a first token to [endpointstate.EngineTimes.AdapterLoaded]. It
// publishes no view, since profiles rarely change.
func (f *Fleet) began(pool objects.Name, address, adapter string, late time.Duration) {
	at := slices.Index(pick.Places[:], adapter)
	if adapter == wire.NoAdapter {
		at = int(pick.InSlot)
	}
	if at >= 0 {
		f.locked(func() { f.state.Times.AdapterLoaded(pool, address, pick.Place(at), late.Seconds()) }) //nolint:gosec // of three
	}
}

// Attribute replaces the address of the port by which Envoy reached an endpoint by the address of
// the endpoint, everywhere in the outcome.
func (f *Fleet) Attribute(o outcome.Outcome) outcome.Outcome {
	w := f.View().World
	if !w.HasPorts() {
		return o
	}
	o.Endpoint = w.EndpointAt(o.Endpoint)
	for _, all := range [][]string{o.Elsewhere, o.Stopping, o.Unreached, o.Missing, o.Without} {
		for i := range all {
			all[i] = w.EndpointAt(all[i])
		}
	}
	return o
}

// Observe applies the outcome of a request: it ends the request's count, and updates the health and
// load of endpoints, the request statistics, and the makers of stored responses.
func (f *Fleet) Observe(o outcome.Outcome) {
	if o.ID != "" {
		if tokens, known := o.Completion.Get(); known {
			f.completed(o.ID, int64(tokens))
		}
		f.Release(o.ID)
	}
	namespace, name, ok := strings.Cut(o.Pool, "/")
	pool := objects.Name{Namespace: namespace, Name: name}
	f.observeAttempts(o, pool)
	if o.Endpoint == "" {
		return
	}
	if o.Well() && o.Status == http.StatusOK {
		f.learn(objects.ModelKey{Pool: pool, ID: o.Model}, o.Bytes, o.Prompt.Or(0), o.Completion.Or(0))
	}
	if alone, tells := o.Alone(); tells {
		f.ran(objects.ModelKey{Pool: pool, ID: o.Model}, alone)
	}
	if ratio, tells := o.Predicted(); tells {
		f.locked(func() { f.state.Times.FirstTokenPredicted(pool, o.Endpoint, ratio) })
	}
	if late, tells := o.Loaded(); tells {
		f.began(pool, o.Endpoint, o.Adapter, late)
	}
	f.Update(Soon, func(s *endpointstate.State, now time.Time) {
		if fault, is := faultOf(o, now); is {
			if f.LogEngineErrors {
				fault.Message = o.ErrorMessage
			}
			endpointstate.Faulted(s, o.Endpoint, fault)
		}
		switch {
		case o.Failure == outcome.Refused:
			s.RequestRefused(o.Endpoint, now)
		case o.Failure == outcome.Reset:
			s.ConnectionBroken(o.Endpoint, now)
		case o.Failure == outcome.EngineGone, o.Faulty():
			s.RequestFailed(o.Endpoint, now)
		case o.Well():
			s.RequestServed(o.Endpoint, o.Began)
		}
	})
	f.Update(Later, func(s *endpointstate.State, now time.Time) {
		s.LoadReported(o.Endpoint, o.Load, o.Began.Add(o.Duration), now)
	})
	switch {
	case o.Found():
		f.Made(o.Stored, f.makerAt(pool, o.Endpoint))
	case o.Nowhere():
		f.nowhere.Add(o.Stored, f.Now())
	}
	if ok && strings.HasPrefix(o.ResponseID, storedPrefix) && o.ResponseID != o.Stored {
		f.Made(o.ResponseID, f.makerAt(pool, o.Endpoint))
	}
}

// faultOf returns the error of a request that failed because of its endpoint.
func faultOf(o outcome.Outcome, now time.Time) (fault endpointstate.Fault, is bool) {
	fault = endpointstate.Fault{At: now, Kind: string(o.Failure), Status: o.Status, Type: o.ErrorType, Code: o.ErrorCode}
	switch {
	case o.Failure == outcome.Refused, o.Failure == outcome.Reset, o.Failure == outcome.TimedOut, o.Failure == outcome.EngineGone:
		return fault, true
	case o.Faulty():
		if fault.Kind == "" {
			fault.Kind = "error"
		}
		return fault, true
	}
	return endpointstate.Fault{}, false
}

// observeAttempts updates the endpoints that were tried and did not serve the request.
func (f *Fleet) observeAttempts(o outcome.Outcome, pool objects.Name) {
	if len(o.Unreached)+len(o.Elsewhere)+len(o.Stopping)+len(o.Missing) == 0 {
		return
	}
	f.Update(Soon, func(s *endpointstate.State, now time.Time) {
		for _, endpoint := range o.Unreached {
			s.ConnectionBroken(endpoint, now)
			endpointstate.Faulted(s, endpoint, endpointstate.Fault{At: now, Kind: string(outcome.Refused)})
		}
		for _, endpoint := range o.Elsewhere {
			s.Full(endpoint, now)
			endpointstate.Faulted(s, endpoint, endpointstate.Fault{At: now, Kind: "full"})
		}
		for _, endpoint := range o.Stopping {
			s.Stopping(endpoint, o.Began)
			endpointstate.Faulted(s, endpoint, endpointstate.Fault{At: now, Kind: "stopping"})
		}
		for _, endpoint := range o.Missing {
			k := endpointstate.CopyKey{ModelKey: objects.ModelKey{Pool: pool, ID: o.Model}, Endpoint: endpoint}
			if o.Again {
				s.OwnNotFound(k, o.Began, now)
			} else {
				s.ModelMissing(k, o.Began, now)
			}
		}
	})
}
