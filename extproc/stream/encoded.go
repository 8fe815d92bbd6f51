package stream

import (
	"runtime"
	"time"

	"github.com/headgate/headgate/extproc/decode"
)

// encoded is what is known of the content codings of a request's body. Where the body is shown whole by our own Envoy, they are undone before
// it is read, and the engine gets it without them.
type encoded struct {
	codings []decode.Coding // as they were applied; nil where none is to be undone
	decoded bool            // they were
}

// newDecoders returns as many decoders as may be used at once: half the processors are left for other requests.
func newDecoders() chan *decode.Decoder {
	free := make(chan *decode.Decoder, max(1, runtime.GOMAXPROCS(0)/2))
	for range cap(free) {
		free <- decode.New(maxBody)
	}
	return free
}

// readEncoding finds what is to be undone of the body.
func (x *exchange) readEncoding() error {
	codings, err := decode.Parse(x.in.encoding)
	switch {
	case len(codings) == 0 && err == nil:
		return nil
	case x.scope.front != Own || x.scope.mode != modeBuffered && x.scope.mode != modeNone:
		return errEncoded
	case err != nil:
		return errCoding
	}
	x.encoded.codings = codings
	return nil
}

// askForBody waits for the body, and has the data plane show it where it would not.
func (x *exchange) askForBody() responses {
	if x.scope.mode != modeNone {
		return responses{goOnHeaders}
	}
	x.scope.mode = modeBuffered
	if x.scope.front == Own {
		return responses{askForOwnBody}
	}
	return responses{askForBody}
}

// decoderLimit bounds how long a body waits for a decoder.
const decoderLimit = 2 * time.Second

// decode undoes the codings of the body, in the order of those that wait for a decoder. Its result counts in Server.kept until it is sent on,
// or waits for its model and counts there.
func (x *exchange) decode(body *[]byte) error {
	if x.encoded.codings == nil {
		return nil
	}
	d, err := x.decoder()
	if err != nil {
		return err
	}
	plain, err := x.server.decodeWith(d, *body, x.encoded.codings)
	if err != nil {
		return err
	}
	*body, x.encoded.decoded = plain, true
	return x.keep(len(plain))
}

// decoder takes a decoder that is free, or waits for one.
func (x *exchange) decoder() (*decode.Decoder, error) {
	select {
	case d := <-x.server.decoders:
		return d, nil
	default:
	}
	timer := time.NewTimer(decoderLimit)
	defer timer.Stop()
	select {
	case d := <-x.server.decoders:
		return d, nil
	case <-timer.C:
		return nil, errCrowded
	case <-x.server.refusing:
		return nil, errStopping
	case <-x.scope.done:
		return nil, errOver
	}
}

// decodeWith decodes a body, and frees the decoder. One that panics is replaced.
func (s *Server) decodeWith(d *decode.Decoder, body []byte, codings []decode.Coding) ([]byte, error) {
	whole := false
	defer func() {
		if !whole {
			d = decode.New(maxBody)
		}
		s.decoders <- d
	}()
	plain, err := d.Decode(body, codings)
	whole = true
	return plain, err
}

// letGo counts the body as kept no more: Envoy has it, or it waits. Messages of calls count for themselves.
func (x *exchange) letGo() {
	if !x.dispatcher.traits.call {
		_ = x.keep(0)
	}
}
