// Package outcome learns what became of each request, after it ended. Envoy's access log service tells it: one record a
// request, with the endpoint that served, what went wrong, how long it took, and what Envoy's own filters read from the
// response. The record also carries what extproc decided, so that an outcome needs nothing remembered, and a restart of
// extproc loses no more than the records of that moment.
package outcome

import (
	"errors"
	"io"
	"net"
	"net/http"
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
	"github.com/headgate/headgate/internal/engine"
)

// Failure is what went wrong between Envoy and the engine, or the client.
type Failure string

const (
	// None is a request that came to its end, whatever its status.
	None Failure = ""
	// Refused is an endpoint that took no connection.
	Refused Failure = "refused"
	// Reset is an endpoint that dropped the connection before its answer was whole.
	Reset Failure = "reset"
	// TimedOut is an endpoint that fell silent for longer than Envoy waits.
	TimedOut Failure = "timeout"
	// ClientGone is a client that went away.
	ClientGone Failure = "client_gone"
	// NoEndpoint is a request that Envoy had nowhere to send: extproc was away, or gave it no endpoint.
	NoEndpoint Failure = "no_endpoint"
	// Cut is an answer that ended before it was whole, where nobody says who ended it.
	Cut Failure = "cut"
	// Other is anything else that Envoy flags.
	Other Failure = "other"
)

// Outcome is what became of one request. A duration that is not known is zero.
type Outcome struct {
	Route, Pool, Model string // as extproc decided; empty for a request that it did not send on
	Stream             bool   // the client asked for one, or got one
	ID                 string // of the decision
	// Endpoint is the one that served, else the first that was picked, else empty; empty too where nothing was sent to any.
	Endpoint string
	// Elsewhere are the endpoints that asked for the request to be tried elsewhere, Stopping those of them that did because
	// they are stopping, Unreached the picks that took no connection: those before Endpoint, or all where none is left.
	Elsewhere, Stopping, Unreached []string
	// Missing are the endpoints that answered that they have no such model.
	Missing []string

	Status   int // 0 if no response began
	Failure  Failure
	Attempts int
	// ByExtproc says that extproc gave the reply itself, ByEnvoy that Envoy did.
	ByExtproc, ByEnvoy bool

	Began     time.Time     // when the request did; zero if that is not known
	Duration  time.Duration // the whole request
	FirstBody time.Duration // from the request's last byte to the first of the response's body: a stream's first token
	// Gateway is the gateway's own share: from the request's first byte to the first sent to the engine, without the time in
	// which the request was held for its model.
	Gateway time.Duration

	Prompt, Completion engine.Value // tokens
	ResponseID         string       // what the engine calls its answer
	// Load is what the engine said of itself with the response, unknown if it said nothing.
	Load engine.Load
}

// Turned says that the endpoint turned the request away or dropped it: it should get no other until it is heard again.
func (o Outcome) Turned() bool { return o.Failure == Refused || o.Failure == Reset }

// Faulty says that the endpoint answered with a fault of its own. That it would not take the request is none, nor is what Envoy
// says itself: of a request with too many headers, or an answer that is too large for it.
func (o Outcome) Faulty() bool {
	return !slices.Contains(o.Elsewhere, o.Endpoint) && o.Failure == None && o.Status >= http.StatusInternalServerError && o.Status != http.StatusNotImplemented && !o.ByExtproc && !o.ByEnvoy
}

// Well says that the endpoint answered as it should: with what was asked for, or with a fault of the request.
func (o Outcome) Well() bool {
	return o.Failure == None && o.Status > 0 && o.Status < http.StatusInternalServerError && !o.ByExtproc && !o.ByEnvoy
}

// Server serves Envoy's access log service. It is safe for concurrent use.
type Server struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	observe func(Outcome)
	once    sync.Once
	closed  chan struct{}
}

// NewServer returns a Server that hands each outcome to observe, from one goroutine for each stream: observe must be
// safe for concurrent use and quick.
func NewServer(observe func(Outcome)) *Server {
	return &Server{observe: observe, closed: make(chan struct{})}
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
			s.observe(Read(entry))
		}
	}
}

// Read makes an outcome of a record. It never fails: what a record lacks is unknown.
func Read(entry *accesslogdatav3.HTTPAccessLogEntry) Outcome {
	common, response := entry.GetCommonProperties(), entry.GetResponse()
	pick := metadata(common, wire.PickNamespace)
	usage := metadata(common, wire.UsageNamespace)
	o := Outcome{
		Route: pick.text(wire.PickRoute), Pool: pick.text(wire.PickPool), Model: pick.text(wire.PickModel),
		Stream:    pick.flag(wire.PickStream) || isEventStream(response.GetResponseHeaders()["content-type"]),
		ID:        pick.text(wire.PickID),
		Elsewhere: split(usage.text(wire.UsageElsewhere)), Stopping: split(usage.text(wire.UsageStopping)),
		Missing:   split(usage.text(wire.UsageMissing)),
		Status:    int(response.GetResponseCode().GetValue()),
		Failure:   failure(common.GetResponseFlags()),
		Attempts:  int(common.GetUpstreamRequestAttemptCount()),
		Duration:  common.GetDuration().AsDuration(),
		Began:     began(common),
		FirstBody: microseconds(common.GetCustomTags()[wire.TagFirstBody]),
		Gateway:   gateway(common, pick),
		Prompt:    usage.number(wire.UsagePrompt), Completion: usage.number(wire.UsageCompletion),
		ResponseID: usage.text(wire.UsageID),
	}
	details := response.GetResponseCodeDetails()
	o.ByExtproc = strings.HasPrefix(details, wire.ReplyDetails)
	o.ByEnvoy = !o.ByExtproc && o.Failure == None && details != "" && details != viaUpstream
	picks := split(metadata(common, wire.DestinationNamespace).text(wire.DestinationHeader))
	if len(picks) > 0 && o.Attempts > 0 {
		o.Endpoint = picks[0]
	}
	if served := address(common.GetUpstreamRemoteAddress()); served != "" {
		o.Endpoint = served
	}
	o.Unreached = unreached(picks, o)
	if report := usage.text(wire.UsageLoad); report != "" {
		o.Load, _ = engine.ReadReport(report) // unknown if it makes no sense
	}
	return o
}

// viaUpstream is Envoy's response code details of an answer that an endpoint gave.
const viaUpstream = "via_upstream"

// gateway is the gateway's own share of a request's time: what Envoy measured, less the hold that extproc told with its decision.
func gateway(common *accesslogdatav3.AccessLogCommon, pick fields) time.Duration {
	held := time.Duration(pick.number(wire.PickHold).Or(0)) * time.Microsecond
	return max(0, microseconds(common.GetCustomTags()[wire.TagGateway])-held)
}

func began(common *accesslogdatav3.AccessLogCommon) time.Time {
	if common.GetStartTime() == nil {
		return time.Time{}
	}
	return common.GetStartTime().AsTime()
}

// unreached is the picks at which an attempt failed without an answer. Where there were fewer attempts than that, Envoy did
// not know some of the picks, and it cannot be told which.
func unreached(picks []string, o Outcome) []string {
	tried := picks
	if o.Failure != NoEndpoint {
		tried = picks[:max(0, slices.Index(picks, o.Endpoint))]
	}
	if len(tried) == 0 || o.Attempts != len(tried)+1 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(tried), func(e string) bool {
		return slices.Contains(o.Elsewhere, e) || slices.Contains(o.Missing, e)
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
func failure(f *accesslogdatav3.ResponseFlags) Failure {
	switch {
	case f == nil:
		return None
	case f.GetUpstreamConnectionFailure():
		return Refused
	case f.GetUpstreamConnectionTermination(), f.GetUpstreamRemoteReset(), f.GetUpstreamProtocolError():
		return Reset
	case f.GetDownstreamConnectionTermination(), f.GetDownstreamRemoteReset():
		return ClientGone
	case f.GetUpstreamRequestTimeout(), f.GetStreamIdleTimeout(), f.GetDurationTimeout(), f.GetUpstreamMaxStreamDurationReached():
		return TimedOut
	case f.GetNoHealthyUpstream(), f.GetNoClusterFound():
		return NoEndpoint
	case f.GetUpstreamOverflow(), f.GetUpstreamRetryLimitExceeded(), f.GetOverloadManager(), f.GetDownstreamProtocolError(), f.GetLocalReset(), f.GetNoRouteFound():
		return Other
	}
	return None
}

func address(a *corev3.Address) string {
	socket := a.GetSocketAddress()
	if socket.GetAddress() == "" {
		return ""
	}
	return net.JoinHostPort(socket.GetAddress(), strconv.FormatUint(uint64(socket.GetPortValue()), 10))
}

// microseconds reads a duration of Envoy's, which is "-" where it does not apply.
func microseconds(s string) time.Duration {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}
