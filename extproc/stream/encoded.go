package stream

import (
	"runtime"
	"time"

	"github.com/headgate/headgate/extproc/decode"
)

// encoded is the state of a compressed body. If Headgate's own Envoy shows the body, extproc
// decodes it before it reads it, and the engine gets the decoded body.
type encoded struct {
	codings []decode.Coding // in the order in which they were applied; nil if nothing is to decode
	decoded bool            // the body was decoded
}

// newDecoders returns as many decoders as may run at once: half of the processors stay free for
// other requests.
func newDecoders() chan *decode.Decoder {
	free := make(chan *decode.Decoder, max(1, runtime.GOMAXPROCS(0)/2))
	for range cap(free) {
		free <- decode.New(maxBody)
	}
	return free
}

// readEncoding reads the content codings of the body.
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

// askForBody waits for the body. If the data plane would not show it, askForBody overrides the
// mode.
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

// decode decodes the body. Bodies wait for a decoder in order. The decoded body counts in
// Server.kept until it is forwarded or queued.
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

// decoder takes a free decoder, or waits for one.
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

// decodeWith decodes a body, and frees the decoder. It replaces a decoder that panics.
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

// letGo ends the count of the body's bytes: Envoy has the body, or the queue counts it. Calls count
// their messages themselves.
func (x *exchange) letGo() {
	if !x.dispatcher.traits.call {
		_ = x.keep(0)
	}
}
