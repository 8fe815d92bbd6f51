package accesslog

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
)

// progress converts a periodic record. It uses the number of bytes received from the endpoint,
// because filters may delay a response on its way to the client.
func (r *record) progress() outcome.Progress {
	var space [maxAddress]byte
	return outcome.Progress{ID: string(r.pick.id), Endpoint: string(r.remote.appendTo(space[:0])), Bytes: r.size}
}

// Capacities for which addresses and lists of picks need no allocation; longer ones work too.
const (
	maxAddress = 64
	maxPicks   = 8
)

// outcome converts the record of a request that has ended. It never fails: fields missing from the
// record are unknown. The outcome shares no memory with the record.
func (r *record) outcome() outcome.Outcome {
	pick, usage := &r.pick, &r.usage
	o := outcome.Outcome{
		Route: string(pick.route), Pool: string(pick.pool), Model: string(pick.model),
		Stream:    pick.stream || r.stream,
		ID:        string(pick.id),
		Again:     pick.again,
		Elsewhere: split(nil, usage.elsewhere), Stopping: split(nil, usage.stopping),
		Missing: split(nil, usage.missing), Without: split(nil, usage.without),
		Stored: string(pick.stored), Everybody: pick.everybody,
		Status:    int(r.status),
		Call:      r.call,
		Failure:   r.flags.failure(),
		Attempts:  int(r.attempts),
		Duration:  r.duration.duration(),
		Began:     r.start.time(),
		FirstBody: r.firstOutput(),
		QueueTime: r.held(),
		Gateway:   max(0, r.gateway-r.held()), // Envoy measures it with the queue time
		Bytes:     int(pick.bytes.Or(0)),
		Expected:  time.Duration(pick.firstToken.Or(0)) * time.Microsecond,
		Adapter:   string(pick.adapter), Loading: time.Duration(pick.adapterLoad.Or(0)) * time.Microsecond,
		Among: int64(pick.among.Or(0)), Answered: r.answered,
		ResponseID: string(usage.id),
	}
	o.Prompt, o.Completion = usage.counts.Tokens()
	r.answeredBy(&o)
	r.servedBy(&o)
	r.erred(&o)
	if len(usage.load) > 0 {
		o.Load, _ = engine.ReadReport(string(usage.load)) // an invalid report is treated as unknown
	}
	return o
}

// viaUpstream is Envoy's response code detail for a response from an endpoint.
const viaUpstream = "via_upstream"

// answeredBy sets whether extproc or Envoy itself answered.
func (r *record) answeredBy(o *outcome.Outcome) {
	const gone = wire.ReplyDetails + "_" + wire.EngineGone
	if string(r.details) == gone {
		o.Failure = outcome.EngineGone
	}
	byExtproc := len(r.details) >= len(wire.ReplyDetails) && string(r.details[:len(wire.ReplyDetails)]) == wire.ReplyDetails
	o.ByExtproc = o.Failure != outcome.EngineGone && byExtproc
	o.ByEnvoy = !o.ByExtproc && o.Failure == outcome.None && len(r.details) > 0 && string(r.details) != viaUpstream
}

// servedBy sets the endpoint, and the picks that did not serve.
func (r *record) servedBy(o *outcome.Outcome) {
	var list [maxPicks]string
	picks := split(list[:0], r.lb.picks)
	if len(picks) > 0 && o.Attempts > 0 {
		o.Endpoint = picks[0]
	}
	var space [maxAddress]byte
	if served := r.remote.appendTo(space[:0]); len(served) > 0 {
		if i := slices.IndexFunc(picks, func(e string) bool { return e == string(served) }); i >= 0 {
			o.Endpoint = picks[i]
		} else {
			o.Endpoint = string(served)
		}
	}
	o.Unreached = unreached(picks, *o)
	o.Everybody = o.Everybody && everybody(picks, *o)
	if strings.Contains(o.Endpoint, "/") {
		o.Endpoint = "" // requests that the relay sent have their own records
	}
}

// erred sets the error in the response.
func (r *record) erred(o *outcome.Outcome) {
	message, kind := string(r.error.message), string(r.usage.kind)
	if len(r.error.whole) > 0 {
		message, kind = outcome.MessageOf(string(r.error.whole)), cmp.Or(kind, outcome.UnknownError)
	}
	o.Carries(kind, string(r.usage.code))
	o.Says(message)
}

// held returns the queue time that extproc reported with its decision.
func (r *record) held() time.Duration {
	return time.Duration(r.pick.hold.Or(0)) * time.Microsecond
}

// firstOutput returns the time from the request's last byte to a stream's first output, or to the
// first byte of a body that is not a stream; 0 if unknown. Envoy measures the first byte. It
// reports the first output as wall-clock time. The clock may have been set meanwhile, so an
// inconsistent value is ignored.
func (r *record) firstOutput() time.Duration {
	if len(r.usage.output) == 0 {
		return r.firstBody
	}
	whole := r.received.duration()
	sent := r.start.time().Add(whole)
	at, known := clock(r.usage.output)
	since := at.Sub(sent)
	const rounding = time.Millisecond
	if !known || since < r.firstBody-rounding || since > r.duration.duration()-whole+rounding {
		return 0
	}
	if opened, known := clock(r.usage.opened); known {
		return outcome.FirstOutput(max(r.firstBody, since), opened.Sub(sent))
	}
	return max(r.firstBody, since)
}

// clock parses a time in microseconds of Unix time.
func clock(text []byte) (at time.Time, known bool) {
	if len(text) == 0 {
		return time.Time{}, false
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	return time.UnixMicro(n), err == nil
}

// unreached returns the picks whose attempts failed without a response. If there were fewer
// attempts than failed picks, Envoy did not know some of the picks. It is unclear which, so
// unreached then returns none.
func unreached(picks []string, o outcome.Outcome) []string {
	tried := picks
	if o.Failure != outcome.NoEndpoint {
		tried = picks[:max(0, slices.Index(picks, o.Endpoint))]
	}
	if len(tried) == 0 || o.Attempts != len(tried)+1 {
		return nil
	}
	failed := append([]string(nil), tried...) // slices.Clone would have the list of picks allocated
	return slices.DeleteFunc(failed, func(e string) bool {
		return slices.Contains(o.Elsewhere, e) || slices.Contains(o.Missing, e) || slices.Contains(o.Without, e)
	})
}

// everybody reports whether every pick except the relay either answered that it does not have the
// stored response, or is the last pick that answered.
func everybody(picks []string, o outcome.Outcome) bool {
	return !slices.ContainsFunc(picks, func(e string) bool {
		return e != o.Endpoint && !strings.Contains(e, "/") && !slices.Contains(o.Without, e)
	})
}

// split parses a list of endpoints in the format of api/wire, and appends it. All endpoints share
// the memory of one string.
func split(to []string, list []byte) []string {
	if len(list) == 0 {
		return to
	}
	for endpoint := range strings.SplitSeq(string(list), ",") {
		to = append(to, endpoint)
	}
	return to
}

// Numbers of the fields of an envoy.data.accesslog.v3.ResponseFlags.
const (
	noHealthyUpstream flags = 1 << (iota + 2)
	upstreamRequestTimeout
	localReset
	upstreamRemoteReset
	upstreamConnectionFailure
	upstreamConnectionTermination
	upstreamOverflow
	noRouteFound
	_ // delay_injected
	_ // fault_injected
	_ // rate_limited
	_ // unauthorized_details
	_ // rate_limit_service_error
	downstreamConnectionTermination
	upstreamRetryLimitExceeded
	streamIdleTimeout
	_ // invalid_envoy_request_headers
	downstreamProtocolError
	upstreamMaxStreamDurationReached
	_ // response_from_cache_filter
	_ // no_filter_config_found
	durationTimeout
	upstreamProtocolError
	noClusterFound
	overloadManager
	_ // dns_resolution_failure
	downstreamRemoteReset
)

// failure returns the most specific of the record's response flags. Envoy may set several: a
// refused connection also exhausts the retries.
func (s flags) failure() outcome.Failure {
	switch {
	case s&upstreamConnectionFailure != 0:
		return outcome.Refused
	case s&(upstreamConnectionTermination|upstreamRemoteReset|upstreamProtocolError) != 0:
		return outcome.Reset
	case s&(downstreamConnectionTermination|downstreamRemoteReset) != 0:
		return outcome.ClientGone
	case s&(upstreamRequestTimeout|streamIdleTimeout|durationTimeout|upstreamMaxStreamDurationReached) != 0:
		return outcome.TimedOut
	case s&(noHealthyUpstream|noClusterFound) != 0:
		return outcome.NoEndpoint
	case s&(upstreamOverflow|upstreamRetryLimitExceeded|overloadManager|downstreamProtocolError|localReset|noRouteFound) != 0:
		return outcome.Other
	}
	return outcome.None
}

// call returns the final status of a gRPC call, and NoCall for a request that is no gRPC call.
func call(text []byte) outcome.Call {
	n, err := strconv.ParseUint(string(text), 10, 8)
	if err != nil {
		return outcome.NoCall
	}
	return outcome.CallOf(uint8(n))
}

// microseconds parses a duration in Envoy's format, in which "-" means that there is none.
func microseconds(text []byte) time.Duration {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}
