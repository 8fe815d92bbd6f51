package kserve_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/extproc/kserve"
)

// str encodes a string or message field whose content is the parts, concatenated.
func str(number protowire.Number, parts ...string) string {
	return string(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), strings.Join(parts, "")))
}

// tag encodes the tag of a field.
func tag(number protowire.Number, wire protowire.Type) string {
	return string(protowire.AppendTag(nil, number, wire))
}

func TestPathMustNameAField(t *testing.T) {
	for _, path := range []kserve.Path{
		{1},
		{1, 1},
		{18999},
		{20000},
		{1<<29 - 1},
		{16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1},
	} {
		if err := kserve.CheckPath(path); err != nil {
			t.Errorf("%v: %v", path, err)
		}
	}
	for _, path := range []kserve.Path{
		nil,
		{},
		{0},
		{1, 0},
		{0, 1},
		{1 << 29},
		{1<<32 - 1},
		{19000},
		{19999},
		{3, 19500, 3},
		{17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1},
	} {
		if err := kserve.CheckPath(path); err == nil {
			t.Errorf("%v: no error", path)
		}
	}
}

func TestExtract(t *testing.T) {
	others := tag(9, protowire.VarintType) + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + // the largest varint
		tag(10, protowire.Fixed64Type) + "12345678" + tag(11, protowire.Fixed32Type) + "1234" + str(12) + str(13, "\xff\x0b")
	for _, c := range []struct {
		name, message string
		path          kserve.Path
		id            string
		found         bool
	}{
		{"first", str(1, "m") + others, kserve.Path{1}, "m", true},
		{"last", others + str(1, "m"), kserve.Path{1}, "m", true},
		{"between others", others + str(1, "größe") + others, kserve.Path{1}, "größe", true},
		{"alone", str(1, "m"), kserve.Path{1}, "m", true},
		{"empty", str(1), kserve.Path{1}, "", true},
		{"not there", others, kserve.Path{1}, "", false},
		{"an empty message", "", kserve.Path{1}, "", false},
		{"long", str(1, strings.Repeat("m", 300)), kserve.Path{1}, strings.Repeat("m", 300), true},
		{"the largest number", str(1<<29-1, "m"), kserve.Path{1<<29 - 1}, "m", true},
		{"a number that begins as another", str(17, "x") + str(1, "m"), kserve.Path{1}, "m", true},

		{"inside", others + str(1, others, str(2, "m"), others) + others, kserve.Path{1, 2}, "m", true},
		{"inside, of the same number", str(1, str(1, "m")), kserve.Path{1, 1}, "m", true},
		{"not there inside", str(1, others), kserve.Path{1, 2}, "", false},
		{"inside an empty container", str(1), kserve.Path{1, 2}, "", false},
		{"no container", others, kserve.Path{1, 2}, "", false},
		{"only outside", str(2, "m"), kserve.Path{1, 2}, "", false},
		{"only behind the container", str(1) + str(2, "m"), kserve.Path{1, 2}, "", false},
		{"three deep", str(4, str(3, str(2, "m"))), kserve.Path{4, 3, 2}, "m", true},

		// Engines accept these unusual encodings.
		{"a long tag", "\x8a\x80\x00\x01m", kserve.Path{1}, "m", true},
		{"a long length", "\x0a\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00m", kserve.Path{1}, "m", true},
		// Fields that are not on the path are not checked.
		{"twice elsewhere", str(2, "x") + str(2, "y") + str(1, "m"), kserve.Path{1}, "m", true},
		{"garbage elsewhere", str(2, "\x0b\xff") + str(1, "m"), kserve.Path{1}, "m", true},
	} {
		id, found, err := kserve.Extract([]byte(c.message), c.path)
		if err != nil || found != c.found || id != c.id {
			t.Errorf("%s: %q, %v, %v", c.name, id, found, err)
		}
	}
}

// A message is rejected if two parsers could read it differently, or if one of them could not read
// it. It does not matter where in the message the ambiguous part is.
func TestAmbiguousMessagesAreRejected(t *testing.T) {
	broken := map[string]string{
		"a field 0":                                      "\x02\x00",
		"a field 0 in two bytes":                         "\x82\x00\x00",
		"a field beyond the largest":                     string(protowire.AppendVarint(nil, 1<<29<<3|2)) + "\x00",
		"a tag that is one of 32 bits to Java":           string(protowire.AppendVarint(nil, 1<<32|9<<3|2)) + "\x00",
		"a tag without an end":                           "\x8a",
		"a tag of eleven bytes":                          strings.Repeat("\x80", 10) + "\x01",
		"a tag of 65 bits":                               "\x8a\x80\x80\x80\x80\x80\x80\x80\x80\x02",
		"a tag alone":                                    tag(9, protowire.BytesType),
		"a length without an end":                        tag(9, protowire.BytesType) + "\x80",
		"a length beyond the end":                        tag(9, protowire.BytesType) + "\x02x",
		"a length of 64 bits":                            tag(9, protowire.BytesType) + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"a length of 63 bits":                            tag(9, protowire.BytesType) + "\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
		"a length that is one of 32 bits to Java":        tag(9, protowire.BytesType) + string(protowire.AppendVarint(nil, 1<<32)),
		"a length that leads back to before the message": tag(9, protowire.BytesType) + string(protowire.AppendVarint(nil, 1<<64-1000)),
		"a length that leads back as far as can be":      tag(9, protowire.BytesType) + string(protowire.AppendVarint(nil, 1<<63)),
		"a length of 65 bits":                            tag(9, protowire.BytesType) + "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02",
		"a length of eleven bytes":                       tag(9, protowire.BytesType) + strings.Repeat("\x80", 10) + "\x00",
		"a varint that is not there":                     tag(9, protowire.VarintType),
		"a varint without an end":                        tag(9, protowire.VarintType) + "\xff\xff",
		"a varint of eleven bytes":                       tag(9, protowire.VarintType) + strings.Repeat("\x80", 10) + "\x01",
		"a fixed64 of seven bytes":                       tag(9, protowire.Fixed64Type) + "1234567",
		"a fixed32 of three bytes":                       tag(9, protowire.Fixed32Type) + "123",
		"a group":                                        tag(9, protowire.StartGroupType) + tag(9, protowire.EndGroupType),
		"the end of a group":                             tag(9, protowire.EndGroupType),
		"wire type 6":                                    tag(9, 6),
		"wire type 7":                                    tag(9, 7),
	}
	for _, wire := range []protowire.Type{
		protowire.VarintType, protowire.Fixed64Type, protowire.StartGroupType, protowire.EndGroupType,
		protowire.Fixed32Type, 6, 7,
	} {
		broken["another type: "+string('0'+rune(wire))] = tag(1, wire) + "\x01\x00\x00\x00\x00\x00\x00\x00"
	}
	refused := func(name, message string, path kserve.Path) {
		t.Helper()
		var fault *kserve.Error
		id, found, err := kserve.Extract([]byte(message), path)
		if !errors.As(err, &fault) || fault.Code != kserve.InvalidArgument || id != "" || found {
			t.Errorf("%s, extract: %q, %v, %v", name, id, found, err)
		}
		fault = nil
		injected, err := kserve.Inject([]byte(message), path, "m")
		if !errors.As(err, &fault) || fault.Code != kserve.InvalidArgument || injected != nil {
			t.Errorf("%s, inject: %q, %v", name, injected, err)
		}
	}
	for name, b := range broken {
		refused(name, b, kserve.Path{1})
		refused(name+" behind the string", str(1, "m")+b, kserve.Path{1})
		refused(name+" behind other fields", str(2, "m")+b, kserve.Path{1})
		refused(name+" in a container", str(1, b), kserve.Path{1, 1})
		refused(name+" in a container behind the string", str(1, str(1, "m"), b), kserve.Path{1, 1})
		refused(name+" behind the container", str(1, str(1, "m"))+b, kserve.Path{1, 1})
		// The container ends early, and the bytes after it could be mistaken for its rest.
		refused(name+" at the end of a container", str(1, b)+str(8, "123456789"), kserve.Path{1, 1})
	}
	for name, m := range map[string]string{
		"twice":                        str(1, "a") + str(1, "b"),
		"twice the same":               str(1, "a") + str(1, "a"),
		"twice, first empty":           str(1) + str(1, "a"),
		"twice, far away":              str(1, "a") + str(2, strings.Repeat("x", 1000)) + str(1, "b"),
		"twice, by a long tag":         str(1, "a") + "\x8a\x00\x01b",
		"not UTF-8":                    str(1, "\xff"),
		"a surrogate":                  str(1, "\xed\xa0\x80"),
		"cut inside a letter":          str(1, "gr\xc3"),
		"letter cut by the next field": str(1, "\xc3") + "\xbc",
	} {
		refused(name, m, kserve.Path{1})
		refused(name+", inside", str(7, m), kserve.Path{7, 1})
	}
	refused("the container twice", str(7, str(1, "a"))+str(7, str(1, "b")), kserve.Path{7, 1})
	refused("the container twice, first empty", str(7)+str(7, str(1, "b")), kserve.Path{7, 1})
	refused("the container twice, then empty", str(7, str(1, "a"))+str(7), kserve.Path{7, 1})
	refused("the container twice, inside", str(6, str(7), str(7, str(1, "b"))), kserve.Path{6, 7, 1})
}

func TestInject(t *testing.T) {
	long, longer := strings.Repeat("l", 127), strings.Repeat("l", 128)
	for _, c := range []struct {
		name, message string
		path          kserve.Path
		id, want      string
	}{
		{"another", str(2, "x") + str(1, "old") + str(3, "y"), kserve.Path{1}, "new", str(2, "x") + str(1, "new") + str(3, "y")},
		{"longer", str(2, "x") + str(1, "m") + str(3, "y"), kserve.Path{1}, "model", str(2, "x") + str(1, "model") + str(3, "y")},
		{"shorter", str(2, "x") + str(1, "model") + str(3, "y"), kserve.Path{1}, "m", str(2, "x") + str(1, "m") + str(3, "y")},
		{"in the place of an empty one", str(1) + str(3, "y"), kserve.Path{1}, "m", str(1, "m") + str(3, "y")},
		{"a length of two bytes", str(1, long) + str(3, "y"), kserve.Path{1}, longer, str(1, longer) + str(3, "y")},
		{"a length of one byte", str(1, longer) + str(3, "y"), kserve.Path{1}, long, str(1, long) + str(3, "y")},
		{"into nothing", "", kserve.Path{1}, "m", str(1, "m")},
		{"behind others", str(3, "y"), kserve.Path{1}, "m", str(3, "y") + str(1, "m")},
		{"by the largest number", str(3, "y"), kserve.Path{1<<29 - 1}, "m", str(3, "y") + str(1<<29-1, "m")},
		{"by a number of two bytes", "", kserve.Path{15, 16}, "m", str(15, str(16, "m"))},

		{"inside", str(1, str(2, "a"), str(3, "x")) + str(3, "y"), kserve.Path{1, 2}, "bc", str(1, str(2, "bc"), str(3, "x")) +
			str(3, "y")},
		{
			"the container's length grows too", str(1, str(2, "a"), str(3, strings.Repeat("x", 122))) + str(4),
			kserve.Path{1, 2},
			"ab",
			str(1, str(2, "ab"), str(3, strings.Repeat("x", 122))) + str(4),
		},
		{"every length grows", str(1, str(1, str(1, long))), kserve.Path{1, 1, 1}, longer, str(1, str(1, str(1, longer)))},
		{"every length shrinks", str(1, str(1, str(1, longer))), kserve.Path{1, 1, 1}, long, str(1, str(1, str(1, long)))},
		{"into nothing, deep", "", kserve.Path{1, 2, 3}, "m", str(1, str(2, str(3, "m")))},
		{"into a container without it", str(1, str(3, "x")) + str(4, "y"), kserve.Path{1, 2}, "m", str(1, str(3, "x"), str(2, "m")) +
			str(4, "y")},
		{"into an empty container", str(1) + str(4, "y"), kserve.Path{1, 2, 3}, "m", str(1, str(2, str(3, "m"))) + str(4, "y")},
		{"missing ones grow", str(1), kserve.Path{1, 2, 3}, long, str(1, str(2, str(3, long)))},
		{"beside what looks like it", str(2, "m"), kserve.Path{1, 2}, "m", str(2, "m") + str(1, str(2, "m"))},

		// A length that stays correct keeps its encoding; a changed length gets the shortest
		// encoding.
		{"a long length that stays", "\x3a\x84\x00\x0a\x81\x00a", kserve.Path{7, 1}, "b", "\x3a\x84\x00\x0a\x81\x00b"},
		{"a long length that does not", "\x3a\x84\x00\x0a\x81\x00a", kserve.Path{7, 1}, "bcd", "\x3a\x05\x0a\x03bcd"},
		{"a long tag", "\x8a\x80\x00\x01a", kserve.Path{1}, "bc", "\x8a\x80\x00\x02bc"},
		{
			"a length that shrinks as the string grows", "\x3a\x84\x00\x0a\x81\x00a" + str(3),
			kserve.Path{7, 1},
			"bc",
			"\x3a\x84\x00\x0a\x02bc" + str(3),
		},
	} {
		before := []byte(c.message)
		got, err := kserve.Inject(before, c.path, c.id)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
		if string(before) != c.message {
			t.Errorf("%s: the message was changed to %q", c.name, before)
		}
		if id, found, err := kserve.Extract(got, c.path); err != nil || !found || id != c.id {
			t.Errorf("%s: then the message has %q, %v, %v", c.name, id, found, err)
		}
		if again, err := kserve.Inject(got, c.path, c.id); err != nil || &again[0] != &got[0] || len(again) != len(got) {
			t.Errorf("%s: the same id again is a copy, or %v", c.name, err)
		}
	}
}

func TestInvalidIDIsNotInjected(t *testing.T) {
	for _, id := range []string{"", "\xff"} {
		var fault *kserve.Error
		got, err := kserve.Inject([]byte(str(1, "m")), kserve.Path{1}, id)
		if !errors.As(err, &fault) || fault.Code != kserve.Internal || got != nil {
			t.Errorf("%q: %q, %v", id, got, err)
		}
	}
}

// Inject works for a path with the maximum number of levels and the longest field numbers, however
// many of the levels exist.
func TestInjectAtEveryDepth(t *testing.T) {
	var path kserve.Path
	for i := range uint32(16) {
		path = append(path, 1<<29-1-i)
	}
	for levels := 1; levels <= len(path); levels++ {
		for there := range levels + 1 {
			for _, size := range []int{1, 127, 128, 1 << 14} {
				nest := func(levels int, inner string) string {
					for i := levels - 1; i >= 0; i-- {
						inner = str(protowire.Number(path[i]), inner) + str(1, "beside")
					}
					return inner
				}
				added := strings.Repeat("m", size)
				for i := levels - 1; i >= there; i-- {
					added = str(protowire.Number(path[i]), added)
				}
				got, err := kserve.Inject([]byte(nest(there, "")), path[:levels], strings.Repeat("m", size))
				if want := nest(there, added); err != nil || string(got) != want {
					t.Fatalf("%d of %d levels, %d bytes: %v, %d bytes, want %d", there, levels, size, err, len(got), len(want))
				}
			}
		}
	}
}

func TestIDIsACopy(t *testing.T) {
	message := []byte(str(1, "model"))
	id, _, err := kserve.Extract(message, kserve.Path{1})
	if err != nil {
		t.Fatal(err)
	}
	clear(message)
	if id != "model" {
		t.Errorf("the id was changed to %q", id)
	}
}

// Reasons go to clients and logs, so they must not quote the message.
func TestReasonsQuoteNothing(t *testing.T) {
	const secret = "SECRET"
	for _, message := range []string{
		str(1, secret) + str(1, secret), str(1, secret, "\xff"), str(1, secret) + "\x08", secret, str(1, secret) + "\x0b" + secret,
		str(2, secret) + "\x08" + secret,
	} {
		_, _, err := kserve.Extract([]byte(message), kserve.Path{1})
		if err == nil || strings.Contains(err.Error(), secret) || !strings.HasSuffix(err.Error(), ".") {
			t.Errorf("%q: %v", message, err)
		}
	}
}

// A submessage of 2 MiB has a length prefix of four bytes.
func TestLargeMessages(t *testing.T) {
	rest := bytes.Repeat([]byte("x"), 1<<21-10)
	message := []byte(str(1, str(2, "m"), str(3, string(rest))))
	got, err := kserve.Inject(message, kserve.Path{1, 2}, "a longer name")
	if want := str(1, str(2, "a longer name"), str(3, string(rest))); err != nil || string(got) != want {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(want))
	}
	if length, n := binary.Uvarint(got[1:]); n != 4 || int(length) != len(got)-5 {
		t.Errorf("the length is %d in %d bytes", length, n)
	}
}
