package kserve_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"github.com/headgate/headgate/extproc/kserve"
)

// framed returns a message with its gRPC prefix.
func framed(flag byte, message string) string {
	return string(flag) + string(binary.BigEndian.AppendUint32(nil, uint32(len(message)))) + message
}

func zip(t testing.TB, text string) string {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// lie changes the uncompressed size that a gzip member claims to have.
func lie(packed string, size uint32) string {
	return packed[:len(packed)-4] + string(binary.LittleEndian.AppendUint32(nil, size))
}

// read reads a body in chunks, cut at these indexes. It returns the messages and the final error.
// The memory of each chunk is overwritten before the next one.
func read(t testing.TB, m *kserve.Messages, body string, cuts ...int) (all []string, end error) {
	t.Helper()
	var frames strings.Builder
	from := 0
	for _, to := range append(cuts, len(body)) {
		chunk := []byte(body[from:to])
		m.Add(chunk)
		from = to
		var messages []kserve.Message
		for {
			message, ok, err := m.Next()
			if err != nil {
				if ok || message.Frame != nil || message.Bytes != nil {
					t.Fatalf("an error, and a message: %q", message)
				}
				end = err
				break
			}
			if !ok {
				break
			}
			messages = append(messages, message)
		}
		for _, message := range messages { // checks that no message was overwritten
			frames.Write(message.Frame)
			all = append(all, string(message.Bytes))
		}
		for i := range chunk {
			chunk[i] = 0xa5
		}
	}
	if !strings.HasPrefix(body, frames.String()) {
		t.Fatalf("the frames of %q are %q", body, frames.String())
	}
	if end == nil {
		if rest := len(body) - frames.Len(); m.Partial() != (rest > 0) {
			t.Fatalf("%d bytes are left, and Partial says %v", rest, m.Partial())
		} else if rest > 0 {
			end = kserve.ErrPartial
		}
	} else if m.Partial() {
		t.Fatalf("%v, although something is missing", end)
	}
	return all, end
}

// code returns the status code of an error; 0 for no error.
func code(err error) kserve.Code {
	if fault, ok := errors.AsType[*kserve.Error](err); ok {
		return fault.Code
	}
	return 0
}

// However a body is cut into chunks, its messages are the same.
func TestMessagesDoNotDependOnChunks(t *testing.T) {
	large := strings.Repeat("a large message ", 8)
	body := framed(0, "one") + framed(0, "") + framed(1, zip(t, "packed")) + framed(0, "") + framed(0, large) + framed(1, zip(t, ""))
	want := []string{"one", "", "packed", "", large, ""}
	check := func(cuts ...int) {
		t.Helper()
		if got, err := read(t, kserve.NewMessages("gzip", 200), body, cuts...); !slices.Equal(got, want) || err != nil {
			t.Fatalf("cut at %v: %q, %v", cuts, got, err)
		}
	}
	var each []int
	for i := range len(body) + 1 {
		each = append(each, i)
		check(i)
		check(i, i) // cut twice at i, for an empty chunk
		for j := i; j <= len(body); j++ {
			check(i, j)
		}
	}
	check(each...)
	for end := range len(body) {
		got, err := read(t, kserve.NewMessages("gzip", 200), body[:end])
		if whole, errWhole := read(t, kserve.NewMessages("gzip", 200), body[:end], each[:end]...); !slices.Equal(got, whole) ||
			!errors.Is(err, errWhole) {
			t.Fatalf("%d bytes: %q, %v, and byte by byte %q, %v", end, got, err, whole, errWhole)
		}
	}
}

func TestBodyEndsBetweenMessages(t *testing.T) {
	if got, err := read(t, kserve.NewMessages("", 10), ""); got != nil || err != nil {
		t.Errorf("nothing: %q, %v", got, err)
	}
	for _, rest := range []string{"\x00", "\x00\x00\x00\x00", "\x00\x00\x00\x00\x01", framed(0, "two")[:7]} {
		got, err := read(t, kserve.NewMessages("", 10), framed(0, "one")+rest)
		if !slices.Equal(got, []string{"one"}) || !errors.Is(err, kserve.ErrPartial) || code(err) != kserve.Internal {
			t.Errorf("%q: %q, %v", rest, got, err)
		}
	}
}

func TestMessagesThatAreRefused(t *testing.T) {
	packed := zip(t, "a text of some length, so that there is something to compress: text, text, text")
	flipped := []byte(packed)
	flipped[len(flipped)-6] ^= 1 // a bit of the checksum
	torn := []byte(packed)
	torn[15] ^= 0x55
	for _, c := range []struct {
		name, encoding, frame string
		want                  kserve.Code
	}{
		{"a flag of 2", "gzip", framed(2, "m"), kserve.Internal},
		{"a flag of 2 without an encoding", "", framed(2, "m"), kserve.Internal},
		{"a flag of 2 by another encoding", "snappy", framed(2, "m"), kserve.Internal},
		{"a flag of 255", "gzip", framed(255, "m"), kserve.Internal},
		{"compressed, without an encoding", "", framed(1, packed), kserve.Internal},
		{"compressed by nothing", "identity", framed(1, packed), kserve.Internal},
		{"compressed in another way", "snappy", framed(1, packed), kserve.Unimplemented},
		{"compressed in two ways", "gzip, gzip", framed(1, packed), kserve.Unimplemented},
		{"too large", "", framed(0, strings.Repeat("m", 101)), kserve.ResourceExhausted},
		{"much too large", "", "\x00\xff\xff\xff\xff", kserve.ResourceExhausted},
		{"too large as received", "gzip", framed(1, packed+strings.Repeat("m", 101)), kserve.ResourceExhausted},
		{"too large when decompressed", "gzip", framed(1, zip(t, strings.Repeat("m", 101))), kserve.ResourceExhausted},
		{"much too large when decompressed", "gzip", framed(1, zip(t, strings.Repeat("m", 9999))), kserve.ResourceExhausted},
		{"too large, with a small stated size", "gzip", framed(1, lie(zip(t, strings.Repeat("m", 101)), 1)), kserve.ResourceExhausted},
		{
			"too large in two members", "gzip", framed(1, zip(t, strings.Repeat("m", 60))+zip(t, strings.Repeat("m", 41))),
			kserve.ResourceExhausted,
		},
		{"packed nothing", "gzip", framed(1, ""), kserve.Internal},
		{"no gzip", "gzip", framed(1, "a message"), kserve.Internal},
		{"a message that is longer", "gzip", framed(1, "a message that is longer"), kserve.Internal},
		{"cut in gzip's head", "gzip", framed(1, packed[:9]), kserve.Internal},
		{"cut after gzip's head", "gzip", framed(1, packed[:10]), kserve.Internal},
		{"cut in what is packed", "gzip", framed(1, packed[:30]), kserve.Internal},
		{"cut in gzip's end", "gzip", framed(1, packed[:len(packed)-1]), kserve.Internal},
		{"a wrong checksum", "gzip", framed(1, string(flipped)), kserve.Internal},
		{"a wrong byte", "gzip", framed(1, string(torn)), kserve.Internal},
		{"a wrong size", "gzip", framed(1, lie(packed, 80)), kserve.Internal},
		{"something behind it", "gzip", framed(1, packed+"m"), kserve.Internal},
		{"a second member that is cut", "gzip", framed(1, zip(t, "m")+packed[:30]), kserve.Internal},
	} {
		for _, cuts := range [][]int{nil, {9}, {3, 11, 12}} {
			if len(c.frame) < 8 {
				cuts = nil
			}
			m := kserve.NewMessages(c.encoding, 100)
			got, err := read(t, m, framed(0, "one")+c.frame+framed(0, "never"), cuts...)
			if !slices.Equal(got, []string{"one"}) || code(err) != c.want {
				t.Errorf("%s, cut at %v: %q, %v", c.name, cuts, got, err)
				continue
			}
			m.Add([]byte(framed(0, "more"))) // later calls return the same error
			if _, ok, again := m.Next(); ok || !errors.Is(again, err) || m.Partial() {
				t.Errorf("%s: then %v, %v", c.name, ok, again)
			}
		}
		// An error that is visible in the prefix is reported before the rest of the message
		// arrives.
		early := c.frame[:5]
		_, err := read(t, kserve.NewMessages(c.encoding, 100), early)
		if seen := code(err) == c.want && !errors.Is(err, kserve.ErrPartial); seen != (early[0] > 1 || early[0] == 1 &&
			c.encoding != "gzip" || early[3] > 0 || early[4] > 100 || len(c.frame) == 5) {
			t.Errorf("%s: the prefix alone gives %v", c.name, err)
		}
	}
}

func TestValidMessages(t *testing.T) {
	large := strings.Repeat("m", 100)
	half := zip(t, large[:50])
	for _, c := range []struct{ name, encoding, frame, want string }{
		{"the largest size", "", framed(0, large), large},
		{"uncompressed, whatever the encoding", "snappy", framed(0, "m"), "m"},
		{"uncompressed beside compressed ones", "gzip", framed(0, "m"), "m"},
		{"identity", "identity", framed(0, "m"), "m"},
		{"the largest size when decompressed", "gzip", framed(1, zip(t, large)), large},
		{"two members", "gzip", framed(1, half+half), large},
		{"many members", "gzip", framed(1, zip(t, "a")+zip(t, "")+zip(t, "b")), "ab"},
		{"an empty last member", "gzip", framed(1, half+zip(t, "")), large[:50]},
	} {
		if got, err := read(t, kserve.NewMessages(c.encoding, 100), c.frame+c.frame); err != nil ||
			!slices.Equal(got, []string{c.want, c.want}) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
	x := zip(t, "x")
	// Messages of these sizes are compressed in several members.
	for _, size := range []int{0, 1, 2, 510, 511, 512, 513, 514, 1022, 1023, 1024, 1025, 1535, 1536, 1537, 2047, 2048, 2049, 3000} {
		text := strings.Repeat("0123456789", 300)[:size]
		packed := zip(t, text) + x
		if got, err := read(t, kserve.NewMessages("gzip", 4000), framed(1, packed)); err != nil ||
			!slices.Equal(got, []string{text + "x"}) {
			t.Fatalf("%d bytes: %q, %v", size, got, err)
		}
		if got, err := read(t, kserve.NewMessages("gzip", max(size+1, len(packed))), framed(1, packed)); err != nil ||
			!slices.Equal(got, []string{text + "x"}) {
			t.Fatalf("%d bytes, the maximum: %q, %v", size, got, err)
		}
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// A compression bomb costs no more memory than the limit, whatever size it claims to have and
// however it is cut into chunks.
func TestCompressionBombIsBounded(t *testing.T) {
	bomb := zip(t, strings.Repeat("\x00", 20<<20))
	least := zip(t, strings.Repeat("\x00", kserve.MaxInflated+1))
	for name, packed := range map[string]string{
		"20 MiB": bomb, "20 MiB with a small stated size": lie(bomb, 10),
		"20 MiB with the largest allowed stated size": lie(bomb, kserve.MaxInflated),
		"1 byte too many": least, "1 byte too many in the last of two": zip(t, strings.Repeat("\x00", kserve.MaxInflated)) + zip(t, "x"),
	} {
		frame := []byte(framed(1, packed))
		m := kserve.NewMessages("gzip", 1<<30)
		m.Add(frame)
		var err error
		bytes := allocated(func() { _, _, err = m.Next() })
		if code(err) != kserve.ResourceExhausted || bytes > kserve.MaxInflated+1<<20 {
			t.Errorf("%s: %v, %d bytes allocated", name, err, bytes)
		}
	}
	// A small message costs little memory, whatever size it claims to have.
	for _, told := range []uint32{5, 1 << 30, 1<<32 - 1} {
		m := kserve.NewMessages("gzip", 1<<30)
		m.Add([]byte(framed(1, lie(zip(t, "small"), told))))
		if bytes := allocated(func() { _, _, _ = m.Next() }); bytes > 128<<10 {
			t.Errorf("with a stated size of %d bytes: %d bytes allocated", told, bytes)
		}
	}
	// If the claimed size is plausible, memory of that size is allocated once.
	m := kserve.NewMessages("gzip", 1<<30)
	m.Add([]byte(framed(1, zip(t, strings.Repeat("0123456789abcdef", 1<<16)))))
	if bytes := allocated(func() { _, _, _ = m.Next() }); bytes > 1<<20+128<<10 {
		t.Errorf("1 MiB: %d bytes allocated", bytes)
	}
	// The largest message that is accepted.
	text := strings.Repeat("0123456789abcdef", kserve.MaxInflated/16)
	if got, err := read(t, kserve.NewMessages("gzip", 1<<30), framed(1, zip(t, text))); err != nil || len(got) != 1 || got[0] != text {
		t.Errorf("the largest message: %d, %v", len(got), err)
	}
}

// A claimed length costs no memory: memory grows with the bytes that arrive.
func TestClaimedLengthCostsNothing(t *testing.T) {
	m := kserve.NewMessages("", 1<<30)
	m.Add([]byte("\x00\x3f\xff\xff\xffbegin"))
	if bytes := allocated(func() { _, _, _ = m.Next() }); bytes > 1<<10 {
		t.Errorf("%d bytes allocated", bytes)
	}
}

// A message in chunks of one byte is copied only a few times, not once per chunk. The same holds
// for a body for which Next is never called.
func TestManyChunksCostLittle(t *testing.T) {
	const size = 1 << 20
	body := []byte(framed(0, strings.Repeat("m", size)))
	for name, asks := range map[string]bool{"asked for": true, "not read": false} {
		m := kserve.NewMessages("", size)
		var ok bool
		bytes := allocated(func() {
			for i := range body {
				m.Add(body[i : i+1])
				if asks || i == len(body)-1 {
					_, ok, _ = m.Next()
				}
			}
		})
		if most := map[bool]int{true: 3, false: 8}[asks] * size; !ok || bytes > most {
			t.Errorf("%s: %v, %d bytes allocated, want at most %d", name, ok, bytes, most)
		}
	}
}

// A message within one chunk is not copied.
func TestWholeMessagesAreNotCopied(t *testing.T) {
	chunk := []byte(framed(0, "one") + framed(0, "two") + framed(0, ""))
	m := kserve.NewMessages("", 10)
	for i := range 3 {
		m.Add(chunk)
		for at := 0; at < len(chunk); {
			message, ok, err := m.Next()
			if !ok || err != nil || &message.Frame[0] != &chunk[at] || len(message.Frame) != 5+len(message.Bytes) {
				t.Fatalf("round %d, at %d: %q, %v, %v", i, at, message, ok, err)
			}
			if cap(message.Frame) > len(message.Frame) || cap(message.Bytes) > len(message.Bytes) {
				t.Fatal("appending to a message overwrites the next")
			}
			at += len(message.Frame)
		}
		if m.Partial() {
			t.Fatal("something is left")
		}
	}
	if allocs := testing.AllocsPerRun(20, func() {
		m.Add(chunk)
		for ok := true; ok; {
			_, ok, _ = m.Next()
		}
	}); allocs > 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}

// Bytes are released after they were read: of a long stream, only an incomplete message is kept.
func TestChunksAreLetGo(t *testing.T) {
	for name, body := range map[string]string{
		"whole messages":                       framed(0, "one") + framed(0, "two"),
		"a message that begins":                framed(0, "one") + framed(0, "two")[:6],
		"a compressed message":                 framed(1, zip(t, "one")),
		"a compressed one that is wrong":       framed(1, zip(t, "one")[:20]),
		"a prefix that begins":                 framed(0, "one") + framed(0, "two")[:2],
		"an error":                             framed(0, "one") + framed(7, "two"),
		"an error after which nothing is read": framed(7, "one") + framed(0, "two"),
	} {
		m := kserve.NewMessages("gzip", 100)
		chunk := new([1 << 16]byte)
		gone := weak.Make(chunk)
		copy(chunk[:], body)
		m.Add(chunk[:len(body):len(body)])
		for ok := true; ok; {
			_, ok, _ = m.Next()
		}
		chunk = nil
		_ = chunk
		for range 3 {
			runtime.GC()
		}
		if gone.Value() != nil {
			t.Errorf("%s: the chunk is still in memory", name)
		}
		runtime.KeepAlive(m)
	}
}

// The caller owns the chunks, so Messages never writes to them, even if Next is not called between
// two calls of Add.
func TestChunksAreNotWrittenTo(t *testing.T) {
	m := kserve.NewMessages("", 10)
	for range 2 { // in the second round, the buffers of the first must not be used
		room := []byte(framed(0, "one")[:6] + "untouched")
		m.Add(room[:6])
		m.Add([]byte(framed(0, "one")[6:] + framed(0, "two")))
		m.Add([]byte(framed(0, "three")))
		if !m.Partial() {
			t.Error("three messages are there, and Partial says no")
		}
		var all []string
		for {
			message, ok, err := m.Next()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			all = append(all, string(message.Bytes))
		}
		if want := []string{"one", "two", "three"}; !slices.Equal(all, want) {
			t.Errorf("%q, want %q", all, want)
		}
		if got := string(room[6:]); got != "untouched" {
			t.Errorf("after the chunk there is %q", got)
		}
	}
	// Messages also never writes to the memory of a message that it has returned.
	m = kserve.NewMessages("", 10)
	m.Add([]byte(framed(0, "one")[:6]))
	m.Add([]byte(framed(0, "one")[6:] + framed(0, "two")))
	one, _, _ := m.Next()
	m.Add([]byte(framed(0, "three")))
	if string(one.Bytes) != "one" {
		t.Errorf("the chunk was one and is %q", one.Bytes)
	}
}

func TestFrame(t *testing.T) {
	for _, message := range []string{"", "m", strings.Repeat("m", 0x010203)} {
		frame := kserve.AppendFrame([]byte("before"), []byte(message))
		if want := "before" + framed(0, message); string(frame) != want {
			t.Errorf("%d bytes: the frame has %d, want %d", len(message), len(frame), len(want))
		}
	}
}

// FuzzMessages reads arbitrary bodies, each in one chunk and cut at random places.
func FuzzMessages(f *testing.F) {
	packed := zip(f, "packed")
	for _, body := range []string{
		"", framed(0, "one") + framed(0, "") + framed(0, "three"), framed(1, packed) + framed(0, "m"), framed(1, packed+packed),
		framed(1, lie(packed, 100)), framed(3, "m"), "\x00\xff\xff\xff\xff", framed(0, strings.Repeat("m", 300)), framed(0, "cut")[:6],
	} {
		for _, encoding := range []string{"gzip", "", "snappy"} {
			f.Add([]byte(body), encoding, uint64(len(body)))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, encoding string, seed uint64) {
		const limit = 200
		whole, errWhole := read(t, kserve.NewMessages(encoding, limit), string(body))
		for _, message := range whole {
			if len(message) > limit {
				t.Fatalf("%q: a message of %d bytes", body, len(message))
			}
		}
		var cuts []int
		c := rand.New(rand.NewPCG(seed, 1))
		for range c.IntN(8) {
			cuts = append(cuts, c.IntN(len(body)+1))
		}
		slices.Sort(cuts)
		all, err := read(t, kserve.NewMessages(encoding, limit), string(body), cuts...)
		if !slices.Equal(all, whole) || code(err) != code(errWhole) || (err == nil) != (errWhole == nil) {
			t.Fatalf("%q, cut at %v: %q, %v, in one chunk %q, %v", body, cuts, all, err, whole, errWhole)
		}
		if again := string(kserve.AppendFrame(nil, body)); again != framed(0, string(body)) {
			t.Fatalf("%q: the frame is %q", body, again)
		}
	})
}
