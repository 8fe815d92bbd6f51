// Package accesslog serves Envoy's access log service, which sends one record per request after its
// end. The record contains the endpoint that served, the failure, the durations, extproc's
// decision, and what Envoy's own filters read from the response. So extproc keeps no state of its
// own for this, and a restart of extproc loses only the records of that moment.
package accesslog

import (
	"errors"
	"io"
	"sync"

	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/extproc/codec"
	"github.com/headgate/headgate/extproc/outcome"
)

// Server serves Envoy's access log service. It is safe for concurrent use.
type Server struct {
	observe func(outcome.Outcome)
	goesOn  func(outcome.Progress)
	once    sync.Once
	closed  chan struct{}
}

// NewServer returns a Server that passes the outcome of each ended request to observe, and the
// progress of each request in flight to goesOn. It calls both from one goroutine per stream, so
// both must be safe for concurrent use and fast.
func NewServer(observe func(outcome.Outcome), goesOn func(outcome.Progress)) *Server {
	return &Server{observe: observe, goesOn: goesOn, closed: make(chan struct{})}
}

// Register adds the service to a gRPC server, which must have the codec of package codec.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	to.RegisterService(&grpc.ServiceDesc{
		ServiceName: accesslogv3.AccessLogService_ServiceDesc.ServiceName,
		Streams: []grpc.StreamDesc{{
			StreamName: "StreamAccessLogs", ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(stream) },
		}},
	}, nil)
}

// Close ends all streams. An Envoy never closes its own, so a server that waits for its streams
// would wait forever. Close may be called more than once.
func (s *Server) Close() { s.once.Do(func() { close(s.closed) }) }

// serve reads the records of one Envoy worker until the worker or Close ends the stream.
func (s *Server) serve(stream grpc.ServerStream) error {
	ended := make(chan error, 1)
	go func() { ended <- s.read(stream) }() // the goroutine ends with the stream, at the latest when this function returns
	select {
	case err := <-ended:
		return err
	case <-s.closed:
		return status.Error(codes.Unavailable, "extproc is stopping")
	}
}

func (s *Server) read(stream grpc.ServerStream) error {
	var all entries
	for {
		err := stream.RecvMsg(&all)
		if errors.Is(err, io.EOF) {
			return stream.SendMsg(&accesslogv3.StreamAccessLogsResponse{})
		}
		if err != nil {
			return err
		}
		all.pass(s.observe, s.goesOn)
	}
}

// Limits of the entries in one message. Envoy sends it when its records have 16 KiB, so that it has
// a few dozen.
const (
	maxEntries  = 1 << 14 // a message with more is invalid: its entries need much more memory than its bytes
	keptEntries = 1 << 8  // memory for more is not kept for the next message
)

// entries are the records in an envoy.service.accesslog.v3.StreamAccessLogsMessage. Decode replaces
// them, and uses their memory again.
type entries struct {
	read []entry
	one  record
}

var _ codec.Message = (*entries)(nil)

// entry is a record of a request that has ended, or of one that is in flight.
type entry struct {
	ended    bool
	outcome  outcome.Outcome
	progress outcome.Progress
}

var errInvalid = errors.New("invalid access-log message")

// Decode reads a message. If a part that extproc uses is invalid, it returns an error and no
// entries. It skips the other parts unchecked.
func (e *entries) Decode(wire []byte) error {
	e.read = e.read[:0]
	if cap(e.read) > keptEntries {
		e.read = nil
	}
	defer func() { e.one = record{} }() // its bytes are valid only during Decode
	valid := codec.Fields(wire, func(t tag, _ uint64, data []byte) bool {
		switch t {
		case 2<<3 | length: // http_logs
			return codec.Fields(data, e.add)
		case 3<<3 | length: // tcp_logs, instead of http_logs
			e.read = e.read[:0]
		}
		return true
	})
	if !valid {
		e.read = e.read[:0]
		return errInvalid
	}
	return nil
}

// add reads a field of an HTTPAccessLogEntries.
func (e *entries) add(t tag, _ uint64, data []byte) bool {
	if t != 1<<3|length { // log_entry
		return true
	}
	r := &e.one
	*r = record{}
	if len(e.read) == maxEntries || !codec.Fields(data, r.read) {
		return false
	}
	if r.kind == accesslogdatav3.AccessLogType_DownstreamPeriodic {
		e.read = append(e.read, entry{progress: r.progress()})
	} else {
		e.read = append(e.read, entry{ended: true, outcome: r.outcome()})
	}
	return true
}

// pass passes the entries to the callbacks of a Server, in their order.
func (e *entries) pass(observe func(outcome.Outcome), goesOn func(outcome.Progress)) {
	for i := range e.read {
		if one := &e.read[i]; one.ended {
			observe(one.outcome)
		} else {
			goesOn(one.progress)
		}
	}
}
