package codec_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/headgate/headgate/extproc/codec"
)

// holder is a message that refers to its wire format after the first byte. It is invalid if that is
// an x.
type holder struct {
	body   []byte
	buffer codec.Buffer
}

var errX = errors.New("x")

func (h *holder) Decode(wire []byte) error {
	h.body = wire[1:]
	if wire[0] == 'x' {
		return errX
	}
	return nil
}

func (h *holder) Held() *[]byte       { return &h.body }
func (h *holder) Hold(b codec.Buffer) { h.buffer = b }

// counted returns buffers that are overwritten when they are returned, and their number.
func counted() (all *codec.Buffers, returned *int) {
	returned = new(int)
	return &codec.Buffers{Returned: func(b []byte) {
		*returned++
		for i := range b {
			b[i] = 0xa5
		}
	}}, returned
}

// The part that a message refers to is in a buffer of its own until the message releases it, and
// each buffer is returned once, also if the message is invalid or refers to nothing.
func TestHeldPartsOutliveTheWire(t *testing.T) {
	text := strings.Repeat("text ", 1000)
	for name, c := range map[string]struct {
		wire          []string
		want          string
		err           error
		held, returns int // buffers that are returned before the message is released, and altogether
	}{
		"one piece":                         {[]string{"-" + text}, text, nil, 0, 1},
		"several pieces":                    {[]string{"-" + text, text, "end"}, text + text + "end", nil, 0, 1},
		"one piece, nothing is held":        {[]string{"-"}, "", nil, 0, 0},
		"several pieces, nothing is held":   {[]string{"-", ""}, "", nil, 1, 1},
		"one piece, which is invalid":       {[]string{"x" + text}, "", errX, 0, 0},
		"several pieces, which are invalid": {[]string{"x" + text, text}, "", errX, 1, 1},
	} {
		buffers, returned := counted()
		var data mem.BufferSlice
		for _, piece := range c.wire {
			data = append(data, mem.SliceBuffer(piece))
		}
		var h holder
		err := codec.With(buffers).Unmarshal(data, &h)
		for _, piece := range data { // as if gRPC had used the memory again
			b := piece.ReadOnlyData()
			for i := range b {
				b[i] = 0xb6
			}
		}
		if !errors.Is(err, c.err) || err == nil && string(h.body) != c.want {
			t.Errorf("%s: there are %.20q and error %v, want %.20q and %v", name, h.body, err, c.want, c.err)
		}
		if *returned != c.held {
			t.Errorf("%s: %d buffers are returned before the release, want %d", name, *returned, c.held)
		}
		h.buffer.Release()
		h.buffer.Release()
		if *returned != c.returns {
			t.Errorf("%s: %d buffers are returned, want %d", name, *returned, c.returns)
		}
	}
}

// encoder is a message that is a text.
type encoder struct {
	text     string
	advance  []byte
	estimate int
	err      error
}

func (e *encoder) Encoded() []byte { return e.advance }
func (e *encoder) Size() int       { return e.estimate }
func (e *encoder) Append(to []byte) ([]byte, error) {
	if e.err != nil {
		return to, e.err
	}
	return append(to, e.text...), nil
}

// Messages encode themselves, and each buffer is returned once, whether or not the estimate of its
// size was right.
func TestMessagesEncodeThemselves(t *testing.T) {
	long := strings.Repeat("text ", 1000)
	for name, c := range map[string]struct {
		message       encoder
		want          string
		before, after int // buffers that are returned before and after gRPC has sent the message
	}{
		"short":                {encoder{text: "short", estimate: 5}, "short", 0, 1},
		"empty":                {encoder{}, "", 0, 1},
		"long":                 {encoder{text: long, estimate: len(long)}, long, 0, 1},
		"longer than expected": {encoder{text: long, estimate: 10}, long, 1, 1},
		"encoded in advance":   {encoder{text: "other", advance: []byte("advance")}, "advance", 0, 0},
		"an error":             {encoder{err: errX}, "", 1, 1},
	} {
		buffers, returned := counted()
		data, err := codec.With(buffers).Marshal(&c.message)
		if got := data.Materialize(); !errors.Is(err, c.message.err) || err == nil && !bytes.Equal(got, []byte(c.want)) {
			t.Errorf("%s: %.20q and error %v, want %.20q and %v", name, got, err, c.want, c.message.err)
		}
		if *returned != c.before {
			t.Errorf("%s: %d buffers are returned before the message is sent, want %d", name, *returned, c.before)
		}
		if err == nil {
			data.Free()
		}
		if *returned != c.after {
			t.Errorf("%s: %d buffers are returned, want %d", name, *returned, c.after)
		}
	}
}
