package ext

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/api/wire"
)

// Envoy sends records together: as many as arrive within recordsEvery, or have recordsBytes. The
// values are those of envoy.yaml.
const (
	recordsEvery = 10 * time.Millisecond
	recordsBytes = 16 << 10
)

// ending is how a request ended, for its record.
type ending struct {
	id                     string
	began, decided, ended  time.Time
	to                     string                      // what the picker named
	metadata               map[string]*structpb.Struct // dynamic metadata of the picker, by namespace
	requestSize, replySize int                         // bytes of the bodies
}

// recordOf returns the record of a request that succeeded: the fields that Envoy fills with
// envoy.yaml, but for those about connections.
func recordOf(e ending) *accesslogdatav3.HTTPAccessLogEntry {
	first, _, _ := strings.Cut(e.to, ",")
	all := &corev3.Metadata{FilterMetadata: e.metadata}
	since := func(t time.Time) *durationpb.Duration { return durationpb.New(t.Sub(e.began)) }
	micros := func(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }
	entry := &accesslogdatav3.HTTPAccessLogEntry{
		ProtocolVersion: accesslogdatav3.HTTPAccessLogEntry_HTTP11,
		CommonProperties: &accesslogdatav3.AccessLogCommon{
			StartTime: timestamppb.New(e.began), TimeToLastRxByte: since(e.began), Duration: since(e.ended),
			TimeToFirstUpstreamTxByte: since(e.decided), TimeToLastUpstreamTxByte: since(e.decided),
			TimeToFirstUpstreamRxByte: since(e.ended), TimeToLastUpstreamRxByte: since(e.ended),
			TimeToFirstDownstreamTxByte: since(e.ended), TimeToLastDownstreamTxByte: since(e.ended),
			UpstreamCluster: wire.EndpointsCluster, UpstreamRequestAttemptCount: 1, Metadata: all, StreamId: e.id,
			UpstreamWireBytesSent: uint64(e.requestSize), UpstreamWireBytesReceived: uint64(e.replySize),
			DownstreamWireBytesSent: uint64(e.replySize), DownstreamWireBytesReceived: uint64(e.requestSize),
			AccessLogType: accesslogdatav3.AccessLogType_DownstreamEnd,
			CustomTags: map[string]string{
				wire.TagFirstBody: micros(e.ended.Sub(e.began)), wire.TagAnswered: micros(e.ended.Sub(e.decided)),
				wire.TagGateway: micros(e.decided.Sub(e.began)),
			},
		},
		Request: &accesslogdatav3.HTTPRequestProperties{
			RequestMethod: corev3.RequestMethod_POST, Scheme: "http", Authority: "gateway", Path: "/v1/chat/completions",
			UserAgent: "bench", RequestId: e.id, RequestHeadersBytes: 300, RequestBodyBytes: uint64(e.requestSize),
		},
		Response: &accesslogdatav3.HTTPResponseProperties{
			ResponseCode: wrapperspb.UInt32(200), ResponseHeadersBytes: 150, ResponseBodyBytes: uint64(e.replySize),
			ResponseHeaders: map[string]string{"content-type": "application/json"}, ResponseCodeDetails: "via_upstream",
		},
	}
	if a, err := netip.ParseAddrPort(first); err == nil {
		entry.CommonProperties.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{
				Address: a.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
			},
		}}
	}
	return entry
}

// recorder sends records to a picker, as one worker of Envoy does. Add is safe for concurrent use.
type recorder struct {
	entries chan *accesslogdatav3.HTTPAccessLogEntry
	ended   chan error // capacity 1
}

// newRecorder opens the stream of records. The caller must call close.
func newRecorder(ctx context.Context, conn grpc.ClientConnInterface) (*recorder, error) {
	stream, err := accesslogv3.NewAccessLogServiceClient(conn).StreamAccessLogs(ctx)
	if err != nil {
		return nil, err
	}
	r := &recorder{make(chan *accesslogdatav3.HTTPAccessLogEntry, 1024), make(chan error, 1)}
	go func() {
		err := r.send(stream)
		for range r.entries { // nobody may wait for a stream that has ended
		}
		r.ended <- err
	}()
	return r, nil
}

func (r *recorder) add(e *accesslogdatav3.HTTPAccessLogEntry) { r.entries <- e }

// close sends the last records, and returns why records could not be sent.
func (r *recorder) close() error {
	close(r.entries)
	return <-r.ended
}

// send sends entries in batches, until the channel is closed.
func (r *recorder) send(stream accesslogv3.AccessLogService_StreamAccessLogsClient) error {
	next := &accesslogv3.StreamAccessLogsMessage{Identifier: &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: "outcome"}}
	var batch []*accesslogdatav3.HTTPAccessLogEntry
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		next.LogEntries = &accesslogv3.StreamAccessLogsMessage_HttpLogs{
			HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: batch},
		}
		err := stream.Send(next)
		next, batch, size = new(accesslogv3.StreamAccessLogsMessage), nil, 0
		return err
	}
	tick := time.NewTicker(recordsEvery)
	defer tick.Stop()
	for {
		var err error
		select {
		case e, ok := <-r.entries:
			if !ok {
				if err := flush(); err != nil && !errors.Is(err, io.EOF) {
					return err
				}
				_, err := stream.CloseAndRecv()
				return unlessEnded(err)
			}
			batch = append(batch, e)
			if size += proto.Size(e); size >= recordsBytes {
				err = flush()
			}
		case <-tick.C:
			err = flush()
		}
		if errors.Is(err, io.EOF) {
			_, err = stream.CloseAndRecv() // returns the reason
		}
		if err != nil {
			return err
		}
	}
}
