package sink

import (
	"encoding/binary"
	"errors"

	"github.com/headgate/headgate/extproc/kserve"
)

// prefixSize is the size of the prefix of each gRPC message: a compression flag and the length
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
const prefixSize = 5

// frames finds gRPC messages in chunks of any size. If a message is lost, it skips this message and
// finds those after it.
type frames struct {
	begun []byte // beginning of an incomplete message, with its prefix
	left  int    // number of bytes that the message still lacks; 0 within a prefix
	lost  bool   // the current message is lost
	ended bool   // the rest of the body does not consist of gRPC messages
}

// add calls each for every message that the chunk completes, with the message's prefix, in new
// memory. For a lost message it calls each once, with the reason. If keep is false, the messages in
// the chunk are lost.
func (f *frames) add(chunk []byte, keep bool, each func(frame []byte, lost Lost)) {
	for len(chunk) > 0 && !f.ended {
		if f.left == 0 {
			n := min(prefixSize-len(f.begun), len(chunk))
			f.begun, chunk = append(f.begun, chunk[:n]...), chunk[n:]
			if len(f.begun) < prefixSize {
				return
			}
			if f.begun[0] > 1 {
				*f = frames{ended: true}
				each(nil, Unreadable)
				return
			}
			f.left, f.lost = int(binary.BigEndian.Uint32(f.begun[1:])), false
			if f.left > MaxBytes {
				f.lose(TooLarge, each)
			}
		}
		n := min(f.left, len(chunk))
		if !keep && !f.lost {
			f.lose(NoMemory, each)
		}
		if !f.lost {
			f.begun = append(f.begun, chunk[:n]...)
		}
		f.left, chunk = f.left-n, chunk[n:]
		f.emit(each)
	}
}

// emit ends the current message if it is complete.
func (f *frames) emit(each func(frame []byte, lost Lost)) {
	if f.left > 0 {
		return
	}
	frame := f.begun
	f.begun = nil
	if !f.lost {
		each(frame, "")
	}
}

func (f *frames) lose(why Lost, each func(frame []byte, lost Lost)) {
	f.lost, f.begun = true, nil
	each(nil, why)
}

// partial reports whether the current message is incomplete and not lost.
func (f *frames) partial() bool { return len(f.begun) > 0 }

// inflate returns a message without its prefix, decompressed.
func inflate(frame []byte, encoding string) ([]byte, Lost) {
	if frame[0] == 0 {
		return frame[prefixSize:], ""
	}
	m := kserve.NewMessages(encoding, MaxBytes)
	m.Add(frame)
	message, _, err := m.Next()
	var fault *kserve.Error
	switch {
	case errors.As(err, &fault) && fault.Code == kserve.ResourceExhausted:
		return nil, TooLarge
	case err != nil:
		return nil, Unreadable
	}
	return message.Bytes, ""
}

// body is the body of a request or answer that is not a gRPC call.
type body struct {
	bytes []byte
	lost  bool
}

// add adds a chunk. If the body becomes lost with this chunk, add returns the reason.
func (b *body) add(chunk []byte, keep bool) Lost {
	why := Lost("")
	switch {
	case b.lost:
	case len(b.bytes)+len(chunk) > MaxBytes:
		why = TooLarge
	case !keep && len(chunk) > 0:
		why = NoMemory
	default:
		b.bytes = append(b.bytes, chunk...)
	}
	if why != "" {
		*b = body{lost: true}
	}
	return why
}
