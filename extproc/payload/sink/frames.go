package sink

import (
	"encoding/binary"
	"errors"

	"github.com/headgate/headgate/extproc/kserve"
)

// prefixSize is how many bytes stand before each message of a call: whether it is compressed, and
// its length (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
const prefixSize = 5

// frames finds the messages in chunks of any size. One that is not kept is passed over, so that
// those after it are found.
type frames struct {
	begun []byte // of a message, with its prefix
	left  int    // how many bytes of the message are to come; 0 within a prefix
	lost  bool   // the message is
	ended bool   // what comes is no messages
}

// add gives each message that the chunk ends to each, with its prefix and in memory of its own, and
// says of one that is lost why, once. Without keep the chunk's are lost.
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

// emit ends the message if it is whole.
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

// partial says whether a message has begun that is neither whole nor lost.
func (f *frames) partial() bool { return len(f.begun) > 0 }

// inflate returns a message without its prefix.
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

// body is the one of a request that is no call, or of its answer.
type body struct {
	bytes []byte
	lost  bool
}

// add adds a chunk, and says why the body is lost if it is by this one.
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
