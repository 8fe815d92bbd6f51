package accesslog_test

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
)

// plain is the oracle: it reads a message with generated code.
func plain(wire []byte, observe func(outcome.Outcome), goesOn func(outcome.Progress)) error {
	var message accesslogv3.StreamAccessLogsMessage
	if err := proto.Unmarshal(wire, &message); err != nil {
		return err
	}
	for _, entry := range message.GetHttpLogs().GetLogEntry() {
		if common := entry.GetCommonProperties(); common.GetAccessLogType() == accesslogdatav3.AccessLogType_DownstreamPeriodic {
			goesOn(progress(common))
		} else {
			observe(plainOutcome(entry))
		}
	}
	return nil
}

func progress(common *accesslogdatav3.AccessLogCommon) outcome.Progress {
	return outcome.Progress{
		ID: metadata(common, wire.PickNamespace).text(wire.PickID), Endpoint: address(common.GetUpstreamRemoteAddress()),
		Bytes: common.GetUpstreamWireBytesReceived(),
	}
}

func plainOutcome(entry *accesslogdatav3.HTTPAccessLogEntry) outcome.Outcome {
	common, response := entry.GetCommonProperties(), entry.GetResponse()
	pick := metadata(common, wire.PickNamespace)
	usage := metadata(common, wire.UsageNamespace)
	o := outcome.Outcome{
		Route: pick.text(wire.PickRoute), Pool: pick.text(wire.PickPool), Model: pick.text(wire.PickModel),
		Stream:    pick.flag(wire.PickStream) || outcome.IsEventStream(response.GetResponseHeaders()["content-type"]),
		ID:        pick.text(wire.PickID),
		Again:     pick.flag(wire.PickAgain),
		Elsewhere: split(usage.text(wire.UsageElsewhere)), Stopping: split(usage.text(wire.UsageStopping)),
		Missing: split(usage.text(wire.UsageMissing)), Without: split(usage.text(wire.UsageWithout)),
		Stored: pick.text(wire.PickStored), Everybody: pick.flag(wire.PickEverybody),
		Status:    int(response.GetResponseCode().GetValue()),
		Call:      call(common.GetCustomTags()[wire.TagCall]),
		Failure:   failure(common.GetResponseFlags()),
		Attempts:  int(common.GetUpstreamRequestAttemptCount()),
		Duration:  common.GetDuration().AsDuration(),
		Began:     began(common),
		FirstBody: firstBody(common, usage),
		QueueTime: held(pick),
		Gateway:   gateway(common, pick),
		Bytes:     int(pick.number(wire.PickBytes).Or(0)),
		Expected:  time.Duration(pick.number(wire.PickFirstToken).Or(0)) * time.Microsecond,
		Adapter:   pick.text(wire.PickAdapter), Loading: time.Duration(pick.number(wire.PickLoad).Or(0)) * time.Microsecond,
		Among: int64(pick.number(wire.PickAmong).Or(0)), Answered: microseconds(common.GetCustomTags()[wire.TagAnswered]),
		ResponseID: usage.text(wire.UsageID),
	}
	o.Prompt, o.Completion = counts(usage).Tokens()
	details := response.GetResponseCodeDetails()
	if details == wire.ReplyDetails+"_"+wire.EngineGone {
		o.Failure = outcome.EngineGone
	}
	o.ByExtproc = o.Failure != outcome.EngineGone && strings.HasPrefix(details, wire.ReplyDetails)
	o.ByEnvoy = !o.ByExtproc && o.Failure == outcome.None && details != "" && details != viaUpstream
	picks := split(metadata(common, wire.DestinationNamespace).text(wire.DestinationHeader))
	if len(picks) > 0 && o.Attempts > 0 {
		o.Endpoint = picks[0]
	}
	if served := address(common.GetUpstreamRemoteAddress()); served != "" {
		o.Endpoint = served
	}
	o.Unreached = unreached(picks, o)
	o.Everybody = o.Everybody && everybody(picks, o)
	if strings.Contains(o.Endpoint, "/") {
		o.Endpoint = "" // requests that the relay sent have their own records
	}
	said := metadata(common, wire.ErrorNamespace)
	message, kind := said.text(wire.ErrorMessage), usage.text(wire.UsageError)
	if whole := said.text(wire.ErrorWhole); whole != "" {
		message, kind = outcome.MessageOf(whole), cmp.Or(kind, outcome.UnknownError)
	}
	o.Carries(kind, usage.text(wire.UsageErrorCode))
	o.Says(message)
	if report := usage.text(wire.UsageLoad); report != "" {
		o.Load, _ = engine.ReadReport(report) // an invalid report is treated as unknown
	}
	return o
}

func counts(usage fields) outcome.Counts {
	return outcome.Counts{
		Prompt: usage.number(wire.UsagePrompt), Completion: usage.number(wire.UsageCompletion),
		Input: outcome.Input{
			Tokens: usage.number(wire.UsageInput), CacheRead: usage.number(wire.UsageCacheRead),
			CacheCreation: usage.number(wire.UsageCacheCreation),
		},
		Begun: outcome.Input{
			Tokens: usage.number(wire.UsageBegunInput), CacheRead: usage.number(wire.UsageBegunCacheRead),
			CacheCreation: usage.number(wire.UsageBegunCacheCreation),
		},
	}
}

// viaUpstream is Envoy's response code detail for a response from an endpoint.
const viaUpstream = "via_upstream"

// gateway returns the gateway overhead: the duration that Envoy measured, minus the queue time that
// extproc reported with its decision.
func gateway(common *accesslogdatav3.AccessLogCommon, pick fields) time.Duration {
	return max(0, microseconds(common.GetCustomTags()[wire.TagGateway])-held(pick))
}

func held(pick fields) time.Duration {
	return time.Duration(pick.number(wire.PickHold).Or(0)) * time.Microsecond
}

// firstBody returns the time from the request's last byte to a stream's first output, or to the
// first byte of a body that is not a stream; 0 if unknown. Envoy measures the first byte. It
// reports the first output as wall-clock time. The clock may have been set meanwhile, so an
// inconsistent value is ignored.
func firstBody(common *accesslogdatav3.AccessLogCommon, usage fields) time.Duration {
	first := microseconds(common.GetCustomTags()[wire.TagFirstBody])
	output := usage.text(wire.UsageOutput)
	if output == "" {
		return first
	}
	whole := common.GetTimeToLastRxByte().AsDuration()
	sent := began(common).Add(whole)
	at, known := clock(output)
	since := at.Sub(sent)
	const rounding = time.Millisecond
	if !known || since < first-rounding || since > common.GetDuration().AsDuration()-whole+rounding {
		return 0
	}
	if opened, known := clock(usage.text(wire.UsageOpened)); known {
		return outcome.FirstOutput(max(first, since), opened.Sub(sent))
	}
	return max(first, since)
}

// clock parses a time in microseconds of Unix time.
func clock(text string) (at time.Time, known bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return time.UnixMicro(n), err == nil
}

func began(common *accesslogdatav3.AccessLogCommon) time.Time {
	if common.GetStartTime() == nil {
		return time.Time{}
	}
	return common.GetStartTime().AsTime()
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
	return slices.DeleteFunc(slices.Clone(tried), func(e string) bool {
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

// split parses a list of endpoints in the format of api/wire.
func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// failure returns the most specific of the record's response flags. Envoy may set several: a
// refused connection also exhausts the retries.
func failure(f *accesslogdatav3.ResponseFlags) outcome.Failure {
	switch {
	case f == nil:
		return outcome.None
	case f.GetUpstreamConnectionFailure():
		return outcome.Refused
	case f.GetUpstreamConnectionTermination(), f.GetUpstreamRemoteReset(), f.GetUpstreamProtocolError():
		return outcome.Reset
	case f.GetDownstreamConnectionTermination(), f.GetDownstreamRemoteReset():
		return outcome.ClientGone
	case f.GetUpstreamRequestTimeout(), f.GetStreamIdleTimeout(), f.GetDurationTimeout(), f.GetUpstreamMaxStreamDurationReached():
		return outcome.TimedOut
	case f.GetNoHealthyUpstream(), f.GetNoClusterFound():
		return outcome.NoEndpoint
	case f.GetUpstreamOverflow(), f.GetUpstreamRetryLimitExceeded(), f.GetOverloadManager(),
		f.GetDownstreamProtocolError(), f.GetLocalReset(), f.GetNoRouteFound():
		return outcome.Other
	}
	return outcome.None
}

// address formats an address as "ip:port", or as the path of a socket; empty if there is none.
func address(a *corev3.Address) string {
	if path := a.GetPipe().GetPath(); path != "" {
		return path
	}
	socket := a.GetSocketAddress()
	if socket.GetAddress() == "" {
		return ""
	}
	return net.JoinHostPort(socket.GetAddress(), strconv.FormatUint(uint64(socket.GetPortValue()), 10))
}

// call returns the final status of a gRPC call, and NoCall for a request that is no gRPC call.
func call(s string) outcome.Call {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return outcome.NoCall
	}
	return outcome.CallOf(uint8(n))
}

// microseconds parses a duration in Envoy's format, in which "-" means that there is none.
func microseconds(s string) time.Duration {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

// fields is one namespace of dynamic metadata. A missing field, or one of another type, reads as
// empty.
type fields map[string]*structpb.Value

func metadata(common *accesslogdatav3.AccessLogCommon, namespace string) fields {
	return common.GetMetadata().GetFilterMetadata()[namespace].GetFields()
}

func (f fields) text(key string) string { return f[key].GetStringValue() }

func (f fields) flag(key string) bool { return f[key].GetBoolValue() }

func (f fields) number(key string) engine.Value {
	if n, ok := f[key].GetKind().(*structpb.Value_NumberValue); ok {
		return engine.Known(n.NumberValue)
	}
	return engine.Value{}
}
