package cost

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/bench/pace"
)

// patience is how long a gateway may take to serve its first request.
const patience = 15 * time.Second

// clients are connections to a gateway that send the same request again and again, each one when
// its last answer has ended (a closed loop).
type clients struct {
	request []byte
	all     []*client
}

type client struct {
	net.Conn
	answer *bufio.Reader
}

// shape describes a request.
type shape struct {
	size          int // of the body in bytes
	stream, usage bool
	hold          bool // the answer does not end
}

// request returns a request of the shape as it is sent.
func (s shape) request() []byte {
	more := ""
	if s.stream {
		more += `,"stream":true`
	}
	if s.usage {
		more += `,"stream_options":{"include_usage":true}`
	}
	if s.hold {
		more += `,"user":"` + holdUser + `"`
	}
	begin, end := `{"model":"`+modelName+`"`+more+`,"max_tokens":200,"messages":[{"role":"user","content":"`, `"}]}`
	words := "the quick brown fox jumps over the lazy dog "
	rest := max(0, s.size-len(begin)-len(end))
	body := begin + strings.Repeat(words, rest/len(words)+1)[:rest] + end
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nuser-agent: bench\r\n"+
		"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s", len(body), body)
}

// dial opens n connections. The caller must close them.
func dial(ctx context.Context, address string, n int, s shape) (*clients, error) {
	c := &clients{request: s.request()}
	for range n {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			c.close()
			return nil, err
		}
		c.all = append(c.all, &client{conn, bufio.NewReaderSize(conn, 16<<10)})
	}
	return c, nil
}

func (c *clients) close() {
	for _, one := range c.all {
		_ = one.Close()
	}
}

// send sends the requests of a load, and returns how long each of them took: from when it was due
// until the end of the answer, or until the first event of a stream.
func (c *clients) send(ctx context.Context, l pace.Load) (took []time.Duration, err error) {
	stopReads := context.AfterFunc(ctx, c.close)
	defer stopReads()
	next, stop, err := l.Start(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	faults := make([]error, len(c.all))
	var mu sync.Mutex // guards took
	var all sync.WaitGroup
	for i, one := range c.all {
		all.Go(func() {
			var own []time.Duration
			for due, ok := next(); ok; due, ok = next() {
				var is time.Duration
				if is, faults[i] = one.ask(c.request, due); faults[i] != nil {
					return
				}
				own = append(own, is)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, fault := range faults { // one of them says enough
		if fault != nil {
			return nil, fault
		}
	}
	return took, nil
}

// ask sends a request and reads the answer.
func (c *client) ask(request []byte, due time.Time) (took time.Duration, err error) {
	if _, err := c.Write(request); err != nil {
		return 0, err
	}
	status, length, chunked, err := answerHead(c.answer)
	if err != nil {
		return 0, fmt.Errorf("no answer: %w", err)
	}
	if status != 200 {
		text := make([]byte, min(max(length, 0), 300))
		n, _ := io.ReadFull(c.answer, text)
		return 0, fmt.Errorf("the answer has the status %d: %s", status, text[:n])
	}
	if !chunked {
		_, err := c.answer.Discard(length)
		return time.Since(due), err
	}
	for {
		n, err := chunkSize(c.answer)
		if err != nil {
			return 0, err
		}
		if took == 0 {
			took = time.Since(due)
		}
		if _, err := c.answer.Discard(n + 2); err != nil || n == 0 {
			return took, err
		}
	}
}

// answerHead reads the head of an answer. It does not read informational answers.
func answerHead(r *bufio.Reader) (status, length int, chunked bool, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, 0, false, err
	}
	_, rest, _ := bytes.Cut(line, []byte(" "))
	if status, err = strconv.Atoi(string(rest[:min(3, len(rest))])); err != nil {
		return 0, 0, false, fmt.Errorf("the answer begins with %q", line)
	}
	for {
		if line, err = r.ReadSlice('\n'); err != nil {
			return 0, 0, false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return status, length, chunked, nil
		}
		if value, ok := field(line, "content-length"); ok {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, 0, false, err
			}
		} else if _, ok := field(line, "transfer-encoding"); ok {
			chunked = true
		}
	}
}

// chunkSize reads the line before a chunk.
func chunkSize(r *bufio.Reader) (int, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(bytes.TrimRight(line, "\r\n")), 16, 31)
	return int(n), err
}

// begin sends one request on each connection. If wait is set, it returns when each answer has
// begun. It serves requests whose answers do not end.
func (c *clients) begin(wait bool) error {
	for _, one := range c.all {
		if err := one.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := one.Write(c.request); err != nil {
			return err
		}
	}
	if !wait {
		return nil
	}
	for _, one := range c.all {
		status, _, _, err := answerHead(one.answer)
		if err != nil {
			return fmt.Errorf("no answer begins: %w", err)
		}
		if status != 200 {
			return fmt.Errorf("the answer has the status %d", status)
		}
	}
	return nil
}

// await sends requests until some of them in a row have succeeded.
func await(ctx context.Context, address string, s shape, inARow int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it did not serve within %v", patience))
	defer cancel()
	var fault error
	for {
		c, err := dial(ctx, address, 1, s)
		if err == nil {
			_, err = c.send(ctx, pace.Load{Requests: inARow})
			c.close()
		}
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			fault = err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), fault)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
