// Package accesslog serves Envoy's access log service, which tells of each request after it ended. One record is a request, with
// the endpoint that served, what went wrong, how long it took, and what Envoy's own filters read from the response. The record
// also carries what extproc decided, so that an outcome needs nothing remembered, and a restart of extproc loses no more than the
// records of that moment.
package accesslog

import (
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
)

// Server serves Envoy's access log service. It is safe for concurrent use.
type Server struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	observe func(outcome.Outcome)
	goesOn  func(outcome.Progress)
	once    sync.Once
	closed  chan struct{}
}

// NewServer returns a Server that passes each outcome to observe, and the progress of each request that goes on to goesOn, from one goroutine
// for each stream: both must be safe for concurrent use and quick.
func NewServer(observe func(outcome.Outcome), goesOn func(outcome.Progress)) *Server {
	return &Server{observe: observe, goesOn: goesOn, closed: make(chan struct{})}
}

// Close ends all streams: an Envoy keeps its own open for as long as it lives, and a server that waits for the end of its
// streams would wait for that. It may be called more than once.
func (s *Server) Close() { s.once.Do(func() { close(s.closed) }) }

// StreamAccessLogs reads the records of one worker of an Envoy until it, or Close, ends the stream.
func (s *Server) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	ended := make(chan error, 1)
	go func() { ended <- s.read(stream) }() // ends with the stream, at the latest when this returns
	select {
	case err := <-ended:
		return err
	case <-s.closed:
		return status.Error(codes.Unavailable, "extproc is stopping")
	}
}

func (s *Server) read(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&accesslogv3.StreamAccessLogsResponse{})
		}
		if err != nil {
			return err
		}
		for _, entry := range message.GetHttpLogs().GetLogEntry() {
			if common := entry.GetCommonProperties(); common.GetAccessLogType() == accesslogdatav3.AccessLogType_DownstreamPeriodic {
				s.goesOn(progress(common))
			} else {
				s.observe(Read(entry))
			}
		}
	}
}

// progress reads a periodic record. Its bytes are those received from the endpoint: filters may keep an answer back from the client.
func progress(common *accesslogdatav3.AccessLogCommon) outcome.Progress {
	return outcome.Progress{
		ID: metadata(common, wire.PickNamespace).text(wire.PickID), Endpoint: address(common.GetUpstreamRemoteAddress()), Bytes: common.GetUpstreamWireBytesReceived(),
	}
}

// Read makes an outcome of a record. It never fails: what a record lacks is unknown.
func Read(entry *accesslogdatav3.HTTPAccessLogEntry) outcome.Outcome {
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
		Held:      held(pick),
		Gateway:   gateway(common, pick),
		Bytes:     int(pick.number(wire.PickBytes).Or(0)), Expected: time.Duration(pick.number(wire.PickFirstToken).Or(0)) * time.Microsecond,
		Adapter: pick.text(wire.PickAdapter), Loading: time.Duration(pick.number(wire.PickLoad).Or(0)) * time.Microsecond,
		Among: int64(pick.number(wire.PickAmong).Or(0)), Answered: microseconds(common.GetCustomTags()[wire.TagAnswered]),
		ResponseID: usage.text(wire.UsageID),
	}
	o.Prompt, o.Completion = counts(usage).Tokens()
	details := response.GetResponseCodeDetails()
	if details == wire.ReplyDetails+"_"+wire.EngineGone {
		o.Failure = outcome.Gone
	}
	o.ByExtproc = o.Failure != outcome.Gone && strings.HasPrefix(details, wire.ReplyDetails)
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
		o.Endpoint = "" // what the inner server had answered is told by records of its own
	}
	o.Carries(usage.text(wire.UsageError), usage.text(wire.UsageErrorCode))
	if report := usage.text(wire.UsageLoad); report != "" {
		o.Load, _ = engine.ReadReport(report) // unknown if it makes no sense
	}
	return o
}

func counts(usage fields) outcome.Counts {
	return outcome.Counts{
		Prompt: usage.number(wire.UsagePrompt), Completion: usage.number(wire.UsageCompletion),
		Input: outcome.Input{Tokens: usage.number(wire.UsageInput), CacheRead: usage.number(wire.UsageCacheRead), CacheCreation: usage.number(wire.UsageCacheCreation)},
		Begun: outcome.Input{Tokens: usage.number(wire.UsageBegunInput), CacheRead: usage.number(wire.UsageBegunCacheRead), CacheCreation: usage.number(wire.UsageBegunCacheCreation)},
	}
}

// viaUpstream is Envoy's response code details of an answer that an endpoint gave.
const viaUpstream = "via_upstream"

// gateway is the gateway's own share of a request's time: what Envoy measured, less the hold that extproc told with its decision.
func gateway(common *accesslogdatav3.AccessLogCommon, pick fields) time.Duration {
	return max(0, microseconds(common.GetCustomTags()[wire.TagGateway])-held(pick))
}

func held(pick fields) time.Duration {
	return time.Duration(pick.number(wire.PickHold).Or(0)) * time.Microsecond
}

// firstBody is the time from the request's last byte to the first output of a stream, to the first byte of another body; 0 if that is not known.
// Envoy measures the first byte; when the output came it tells by the clock, which may have been set meanwhile: what does not fit is not known.
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

// clock reads a time in microseconds of Unix time.
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

// unreached is the picks at which an attempt failed without an answer. Where there were fewer attempts than that, Envoy did
// not know some of the picks, and it cannot be told which.
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

// everybody says whether each pick but the inner server answered that it has not the stored response, or is the last that answered.
func everybody(picks []string, o outcome.Outcome) bool {
	return !slices.ContainsFunc(picks, func(e string) bool {
		return e != o.Endpoint && !strings.Contains(e, "/") && !slices.Contains(o.Without, e)
	})
}

// split reads a list of endpoints as api/wire has it.
func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// failure takes the flag that says most, for Envoy sets several: a refused connection also ends its retries.
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
	case f.GetUpstreamOverflow(), f.GetUpstreamRetryLimitExceeded(), f.GetOverloadManager(), f.GetDownstreamProtocolError(), f.GetLocalReset(), f.GetNoRouteFound():
		return outcome.Other
	}
	return outcome.None
}

// address is "ip:port", the path of a socket, or empty.
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

// call reads the status that a gRPC call ended with: none of a request that is no call.
func call(s string) outcome.Call {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return outcome.NoCall
	}
	return outcome.CallOf(uint8(n))
}

// microseconds reads a duration of Envoy's, which is "-" where it does not apply.
func microseconds(s string) time.Duration {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}
