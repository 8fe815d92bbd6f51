package ext

import (
	"errors"
	"io"
	"sync/atomic"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// std is a no-op on generated code.
type std struct {
	extprocv3.UnimplementedExternalProcessorServer
	accesslogv3.UnimplementedAccessLogServiceServer
	headers []*extprocv3.ProcessingResponse // replies to headers, used in turn
	turn    atomic.Uint64
}

// newStd returns a no-op that names these endpoints in turn.
func newStd(endpoints []string) *std { return &std{headers: headerReplies(endpoints)} }

func (n *std) register(server *grpc.Server) {
	extprocv3.RegisterExternalProcessorServer(server, n)
	accesslogv3.RegisterAccessLogServiceServer(server, n)
}

// Process implements envoy.service.ext_proc.v3.ExternalProcessor.
func (n *std) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	var p passage
	for {
		in, err := stream.Recv()
		if err != nil {
			return unlessEnded(err)
		}
		if out := n.reply(&p, in); out != nil {
			if err := stream.Send(out); err != nil {
				return unlessEnded(err)
			}
		}
	}
}

// reply returns the reply to a message; nil if there is none.
func (n *std) reply(p *passage, in *extprocv3.ProcessingRequest) *extprocv3.ProcessingResponse {
	if c := in.GetProtocolConfig(); c != nil {
		p.configure(c.GetRequestBodyMode(), c.GetResponseBodyMode())
	}
	if p.observed = p.observed || in.GetObservabilityMode(); p.observed {
		return nil
	}
	switch m := in.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return n.headers[n.turn.Add(1)%uint64(len(n.headers))]
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return reply(responseHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		return p.replyToBody(requestBody, m.RequestBody)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return p.replyToBody(responseBody, m.ResponseBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return reply(requestTrailers)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return reply(responseTrailers)
	}
	return nil
}

// replyToBody returns the reply to a body, or to a chunk of a full duplex body.
func (p *passage) replyToBody(of kind, chunk *extprocv3.HttpBody) *extprocv3.ProcessingResponse {
	switch {
	case !p.duplex[of-requestBody]:
		return reply(of)
	case p.echoes(of, chunk.GetEndOfStream()):
		return echo(of, chunk)
	}
	return nil
}

// StreamAccessLogs implements envoy.service.accesslog.v3.AccessLogService. It drops all records.
func (n *std) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		switch _, err := stream.Recv(); {
		case errors.Is(err, io.EOF):
			return stream.SendAndClose(new(accesslogv3.StreamAccessLogsResponse))
		case err != nil:
			return unlessEnded(err)
		}
	}
}

// unlessEnded returns nil for the errors that mean that Envoy has ended a stream.
func unlessEnded(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}
