package ext

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
)

// errProtocol means that Envoy would end the stream because of the picker's reply.
var errProtocol = errors.New("this breaks the protocol")

// client sends requests to a picker as Envoy does. It is safe for concurrent use.
type client struct {
	prompts *prompts
	mode    mode
	timeout time.Duration // for all of a request; 0 means none
	hold    time.Duration // how long a stream stays open after the decision, as while an engine answers
	conns   []grpc.ClientConnInterface
	records *recorder // gets a record of each request that may pass; may be nil
	sent    atomic.Uint64
}

// connect returns connections to a picker: unix:PATH or HOST:PORT. Secure uses TLS without
// verifying the certificate, as gateways do. The caller must call closeAll.
func connect(target string, number int, secure bool) (conns []grpc.ClientConnInterface, closeAll func(), err error) {
	if !strings.HasPrefix(target, "unix:") {
		target = "passthrough:///" + target
	}
	creds := insecure.NewCredentials()
	if secure {
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // as gateways do
	}
	var all []*grpc.ClientConn
	closeAll = func() {
		for _, c := range all {
			_ = c.Close()
		}
	}
	for range number {
		// The authority is that of envoy.yaml.
		c, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithAuthority(wire.ExtprocCluster))
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		all, conns = append(all, c), append(conns, c)
	}
	return conns, closeAll, nil
}

// ask sends one request, and returns the answer and when it came. It returns when the picker has
// ended the stream.
func (c *client) ask(ctx context.Context) (a answer, at time.Time, err error) {
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout+c.hold)
		defer cancel()
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, wire.BackMetadata, wire.BackSocket))
	defer cancel()
	i := c.sent.Add(1) - 1
	body := c.prompts.body(i)
	stream, err := extprocv3.NewExternalProcessorClient(c.conns[i%uint64(len(c.conns))]).Process(ctx)
	if err != nil {
		return a, at, err
	}
	r := replies{mode: c.mode}
	if c.records != nil {
		r.metadata = make(map[string]*structpb.Struct)
	}
	id, began, size := idOf(c.prompts.run+i), time.Now(), len(body)
	if err := stream.Send(headersOf(c.mode, id, c.prompts.name(i), size)); err != nil {
		return a, at, ended(stream, err)
	}
	sent := make(chan struct{})
	switch c.mode {
	case buffered:
		done := false
		for !r.headers && !done {
			if done, err = next(stream, &r); err != nil {
				return a, at, err
			}
		}
		if !done {
			if err := stream.Send(bodyOf(body, true)); err != nil {
				return a, at, ended(stream, err)
			}
		}
		close(sent)
	case duplex:
		// The picker may reply before it has read all chunks, so they are sent apart.
		go func() {
			defer close(sent)
			for len(body) > 0 {
				n := min(len(body), chunkSize)
				if stream.Send(bodyOf(body[:n], n == len(body))) != nil {
					return // Recv returns the reason
				}
				body = body[n:]
			}
		}()
	default:
		close(sent)
	}
	for done := r.answer.status != 0; !done; {
		if done, err = next(stream, &r); err != nil {
			cancel()
			<-sent
			return a, at, err
		}
	}
	at = time.Now()
	if r.answer.status != 0 { // after a rejection Envoy sends no further messages
		cancel()
	}
	<-sent
	if c.hold > 0 && r.answer.status == 0 {
		select {
		case <-time.After(c.hold):
		case <-ctx.Done():
		}
	}
	if err := c.end(stream, &r); err != nil {
		return a, at, fmt.Errorf("after the decision: %w", err)
	}
	if c.records != nil && r.answer.status == 0 {
		c.records.add(recordOf(ending{
			id: id, began: began, decided: at, ended: time.Now(), to: r.answer.to, metadata: r.metadata, requestSize: size,
			replySize: len(responseBodyOf),
		}))
	}
	return r.answer, at, nil
}

// end ends a stream. With a full duplex body it first sends the response of an engine, as a gateway
// does that lets the picker see responses. It returns when the picker has ended the stream.
func (c *client) end(stream processStream, r *replies) (err error) {
	if c.mode == duplex && r.answer.status == 0 {
		for _, m := range responseOf() {
			if stream.Send(m) != nil {
				break // Recv returns the reason
			}
		}
	}
	_ = stream.CloseSend()
	for {
		m, err := stream.Recv()
		if err != nil {
			return unlessEnded(err)
		}
		if err := r.takeResponse(m); err != nil {
			return err
		}
	}
}

type processStream = extprocv3.ExternalProcessor_ProcessClient

// next reads a reply. The end of the stream is an error.
func next(stream processStream, r *replies) (done bool, err error) {
	m, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return false, fmt.Errorf("the stream has ended without a decision: %w", errProtocol)
	}
	if err != nil {
		return false, err
	}
	return r.take(m)
}

// ended returns why a stream has ended, if Send returned io.EOF.
func ended(stream processStream, err error) error {
	for errors.Is(err, io.EOF) {
		if _, why := stream.Recv(); why != nil {
			return why
		}
	}
	return err
}
