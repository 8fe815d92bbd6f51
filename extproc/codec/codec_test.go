package codec_test

import (
	"errors"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/extproc/codec"
)

type message struct{ got string }

var errEmpty = errors.New("empty")

func (m *message) Decode(wire []byte) error {
	if m.got = string(wire); m.got == "" {
		return errEmpty
	}
	return nil
}

// A message that decodes itself gets its bytes in one piece, and its error is returned. Others are
// decoded by generated code.
func TestMessagesDecodeThemselves(t *testing.T) {
	c := codec.New()
	for _, data := range []mem.BufferSlice{
		{mem.SliceBuffer("whole")},
		{mem.SliceBuffer("in "), mem.SliceBuffer("two "), mem.SliceBuffer("pieces")},
	} {
		var m message
		if err := c.Unmarshal(data, &m); err != nil || m.got != string(data.Materialize()) {
			t.Errorf("%q is decoded as %q: %v", data.Materialize(), m.got, err)
		}
	}
	if err := c.Unmarshal(nil, &message{}); !errors.Is(err, errEmpty) {
		t.Errorf("the error is %v, want the message's", err)
	}
	wire, err := c.Marshal(wrapperspb.String("text"))
	if err != nil {
		t.Fatal(err)
	}
	var text wrapperspb.StringValue
	if err := c.Unmarshal(wire, &text); err != nil || text.GetValue() != "text" {
		t.Errorf("a generated message is decoded as %v: %v", &text, err)
	}
	if c.Name() != "proto" {
		t.Errorf("its name is %q", c.Name())
	}
}
