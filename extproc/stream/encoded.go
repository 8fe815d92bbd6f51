package stream

import (
	"runtime"
	"time"

	"github.com/headgate/headgate/extproc/decode"
)

// encoded is the state of a compressed body. If Headgate's own Envoy sends the body to extproc,
// extproc decompresses it and forwards it decompressed.
type encoded struct {
	codings []decode.Coding // in the order of compression; nil if there is nothing to decode
	decoded bool            // the body was decoded
}

// newDecoders returns the decoders. Half as many as there are processors can run at the same time,
// so that the other processors serve other requests.
func newDecoders() chan *decode.Decoder {
	free := make(chan *decode.Decoder, max(1, runtime.GOMAXPROCS(0)/2))
	for range cap(free) {
		free <- decode.New(maxBody)
	}
	return free
}

// readEncoding reads the content codings from the headers of the request.
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

// askForBody returns the message that makes the data plane send the body to extproc. If the data
// plane would not send the body, the message overrides the mode.
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

// decoderLimit limits how long a body waits for a decoder.
const decoderLimit = 2 * time.Second

// decode replaces the body by the decoded body. Bodies wait for a decoder in order of arrival.
// Server.kept includes the decoded body until it is forwarded or queued.
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

// decoder returns a free decoder, if necessary after a wait.
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

// decodeWith decodes a body, and makes the decoder free again. If the decoder panics, decodeWith
// replaces it.
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

// letGo subtracts the body's bytes from Server.kept: Envoy has the body, or the queue counts it.
// Calls count their messages themselves.
func (x *exchange) letGo() {
	if !x.dispatcher.traits.call {
		_ = x.keep(0)
	}
}
