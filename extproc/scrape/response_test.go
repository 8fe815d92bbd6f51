package scrape

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var mutations = flag.Int("mutations", 5000, "number of mutated responses that TestResponsesAreReadAsByNetHTTP reads")

// bodyLimit is the longest body that the parser accepts in tests.
const bodyLimit = 3000

// seeds are responses from which tests make others. The parser accepts all of them.
func seeds() []string {
	long := strings.Repeat("vllm:num_requests_running{model_name=\"tiny\"} 3.0\n", 50)
	return []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\ndate: Fri, 27 Nov 2026 10:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: " + strconv.Itoa(len(long)) +
			"\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n\r\n" + long,
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n00A\r\n, engines!\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nConnection: keep-alive\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(long), long),
		"HTTP/1.1 404 Not Found\r\nserver: uvicorn\r\ncontent-length: 22\r\ncontent-type: application/json\r\n\r\n{\"detail\":\"Not Found\"}",
		"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		"HTTP/1.1 500\r\nContent-Length: 2\r\nX: \r\n\r\nno",
		"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\n1 2HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n3", // two of them
	}
}

// refused are responses that are left to net/http.
var refused = []string{
	"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/2.0 200 OK\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 200 OK\r\n\r\nuntil the end",
	"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 307 Temporary Redirect\r\nLocation: /metrics/\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 304 Not Modified\r\nContent-Length: 1\r\n\r\n",
	"HTTP/1.1 20 OK\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 2000 OK\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 200 OK\nContent-Length: 1\n\n1",
	"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n1",
	"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n1",
	"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n1\r\n1\r\n0\r\nX: 1\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\nX: 1\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\n1\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n00000001\r\n1\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n12\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 200 OK\r\nConnection: upgrade\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 200 OK\r\nX: 1\r\n 2\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 200 OK\r\nX : 1\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 200 OK\r\n: 1\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 200 OK\r\nX: \x00\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("1", maxHead) + "\r\nContent-Length: 1\r\n\r\n1",
	"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("1", maxHead),
}

// parsed is a response as both parsers see it.
type parsed struct {
	status      int
	media, body string
	last        bool
	rest        string // bytes after it
}

var errCut = errors.New("the response is incomplete")

// parse parses a response that arrives in pieces of at most the length that piece returns.
func parse(input string, piece func() int) (parsed, error) {
	r, buffer := response{limit: bodyLimit}, []byte(nil)
	for at := 0; ; {
		n := min(max(1, piece()), len(input)-at)
		buffer = append(slices.Clip(buffer), input[at:at+n]...) // the memory changes with each piece
		at += n
		var done bool
		var err error
		if buffer, done, err = r.advance(buffer); err != nil {
			return parsed{}, err
		}
		if done {
			end := r.body + r.have
			return parsed{r.status, r.media, string(buffer[r.body:end]), r.last, string(buffer[end:]) + input[at:]}, nil
		}
		if at == len(input) {
			return parsed{}, errCut
		}
	}
}

// oracle parses a response with net/http.
func oracle(input string) (parsed, error) {
	reader := bufio.NewReader(strings.NewReader(input))
	answer, err := http.ReadResponse(reader, &http.Request{Method: http.MethodGet})
	if err != nil {
		return parsed{}, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return parsed{}, err
	}
	rest, _ := io.ReadAll(reader)
	return parsed{answer.StatusCode, answer.Header.Get("Content-Type"), string(body), answer.Close, string(rest)}, nil
}

// same checks that a response is refused, or is read as by net/http, whatever the pieces. It
// returns the error of the parser.
func same(t *testing.T, input string, random *rand.Rand) error {
	t.Helper()
	whole, err := parse(input, func() int { return len(input) })
	pieces, err2 := parse(input, func() int { return random.IntN(1 + random.IntN(1+len(input))) })
	if pieces != whole || !errors.Is(err2, err) {
		t.Fatalf("%q:\nin pieces %+v, %v\nas a whole %+v, %v", input, pieces, err2, whole, err)
	}
	want, fault := oracle(input)
	switch {
	case err == nil && (fault != nil || whole != want):
		t.Fatalf("%q:\nparsed %+v\nnet/http %+v, %v", input, whole, want, fault)
	case errors.Is(err, errCut) && fault == nil:
		t.Fatalf("%q is incomplete, but net/http reads %+v", input, want)
	case errors.Is(err, errTooLong) && fault == nil && len(want.body) <= bodyLimit:
		t.Fatalf("%q is too long, but net/http reads %d bytes", input, len(want.body))
	}
	return err
}

// mutate returns a changed response.
func mutate(text string, all []string, random *rand.Rand) string {
	b := []byte(text)
	for range 1 + random.IntN(3) {
		at := random.IntN(len(b) + 1)
		if random.IntN(2) == 0 { // most bytes of a long response are its body
			at = min(at, random.IntN(120))
		}
		end := at + random.IntN(min(len(b)-at, 40)+1)
		switch random.IntN(7) {
		case 0:
			b = b[:at]
		case 1:
			b = slices.Delete(b, at, end)
		case 2:
			b = slices.Insert(b, at, slices.Clone(b[at:end])...)
		case 3:
			if at < len(b) {
				b[at] = byte(random.IntN(256))
			}
		case 4:
			const bytes = "\r\n :;0123456789aAfF+-\t,"
			b = slices.Insert(b, at, bytes[random.IntN(len(bytes))])
		case 5: // a line of another response
			lines := strings.SplitAfter(all[random.IntN(len(all))], "\n")
			starts := []int{0}
			for i, c := range b {
				if c == '\n' {
					starts = append(starts, i+1)
				}
			}
			b = slices.Insert(b, starts[random.IntN(min(len(starts), 8))], []byte(lines[random.IntN(len(lines))])...)
		case 6: // the end of another response
			other := all[random.IntN(len(all))]
			b = append(b[:at], other[min(at, len(other)):]...)
		}
	}
	return string(b)
}

// Mutated responses are refused, or read as by net/http.
func TestResponsesAreReadAsByNetHTTP(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	all := append(seeds(), refused...)
	var read, cut, left int
	for i := range *mutations {
		switch err := same(t, mutate(all[i%len(all)], all, random), random); {
		case err == nil:
			read++
		case errors.Is(err, errCut):
			cut++
		default:
			left++
		}
	}
	if least := *mutations / 20; read < least || cut < least || left < least {
		t.Errorf("of %d responses %d are read, %d are cut and %d are left to net/http", *mutations, read, cut, left)
	}
}

// The parser reads what engines send, however it is cut into pieces, and refuses the rest.
func TestResponses(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, text := range seeds() {
		if err := same(t, text, random); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		whole, _ := oracle(text)
		for cut := range len(text) - len(whole.rest) {
			if err := same(t, text[:cut], random); !errors.Is(err, errCut) {
				t.Errorf("%q: %v", text[:cut], err)
			}
		}
	}
	for _, text := range refused {
		if err := same(t, text, random); !errors.Is(err, errRefused) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{
		fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", bodyLimit+1),
		"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("400\r\n"+strings.Repeat("x", 1024)+"\r\n", 3),
	} {
		if err := same(t, text, random); !errors.Is(err, errTooLong) {
			t.Errorf("%.80q: %v", text, err)
		}
	}
}

// FuzzPage compares the parser with net/http.
func FuzzPage(f *testing.F) {
	for _, text := range append(seeds(), refused...) {
		f.Add([]byte(text), uint64(1))
	}
	f.Fuzz(func(t *testing.T, input []byte, seed uint64) {
		_ = same(t, string(bytes.Clone(input)), rand.New(rand.NewPCG(seed, 0)))
	})
}
