package cost

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/cli"
)

const enginesUsage = `Serves several engines that answer at once, with answers that are made in advance: a completion of OpenAI's API, a
stream of 200 events, a list of one model, and a page of metrics. It costs so little that it does not limit a gateway.

Usage:

  bench cost engines [flags]

`

// The recorded pages of an idle and of a busy vLLM 0.32, and their sizes.
const (
	pageIdle   = "bench/testdata/vllm-0.32/metrics-idle.txt"   // 48 KB
	pageLoaded = "bench/testdata/vllm-0.32/metrics-loaded.txt" // 82 KB
)

const (
	events      = 200         // of a stream
	modelName   = "tiny"      // in the recorded pages
	pages       = 8           // an engine's page changes from scrape to scrape, and repeats after these
	smallBody   = 8 << 10     // larger bodies do not ask for streams
	holdUser    = "hold"      // user of requests that the engine begins to answer and does not end
	readyPath   = "/health"   // answers when the process listens
	scrapedPath = "/scraped"  // states how often and how late all engines together were scraped
	sinkPath    = "/payloads" // accepts copies of requests and answers
	headLimit   = 1 << 16     // longest line of the head of a request
)

// The bodies of answers, as long as those of a real vLLM.
const (
	answerBody = `{"id":"chatcmpl-8b1ef7290cff4433","object":"chat.completion","created":1795228416,"model":"` + modelName +
		`","choices":[{"index":0,"message":{"role":"assistant","content":"The quick brown fox jumps.","refusal":null,` +
		`"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"length",` +
		`"stop_reason":null,"token_ids":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-bc3e7f4b",` +
		`"usage":{"prompt_tokens":250,"total_tokens":256,"completion_tokens":6,"prompt_tokens_details":null}}`
	modelsBody = `{"object":"list","data":[{"id":"` + modelName +
		`","object":"model","created":1795228379,"owned_by":"vllm","root":"./tiny","parent":null,"max_model_len":131072}]}`
)

// enginesCommand runs "bench cost engines".
func enginesCommand(ctx context.Context, args []string, out io.Writer) error {
	f := cli.Flags("bench cost engines", enginesUsage, out)
	listen := f.StringSlice("listen", nil, "`HOST:PORT` of each engine")
	path := f.String("page", pageLoaded, "`FILE` with the page of metrics; its counters rise")
	small := f.Bool("small-page", false, "leave of that page only what gateways read, so that scrapes cost little")
	idle := f.Bool("idle", false, "show engines on which no request runs, so that only counters of their processes rise")
	pace := f.Duration("pace", 5*time.Millisecond, "`DURATION` between two events of a stream")
	if err := cli.Parse(f, args, 0); err != nil {
		return err
	}
	if len(*listen) == 0 {
		return f.Wrong(errors.New("--listen is missing"))
	}
	text, err := os.ReadFile(*path)
	if err != nil {
		return err
	}
	if *small {
		text = reduced(text)
	}
	s := newEngines(text, !*idle, *pace)
	var lists []net.Listener
	defer func() {
		for _, l := range lists {
			_ = l.Close()
		}
	}()
	for _, address := range *listen {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		lists = append(lists, l)
	}
	var all sync.WaitGroup
	for _, l := range lists {
		all.Go(func() { s.accept(l) })
	}
	<-ctx.Done()
	for _, l := range lists {
		_ = l.Close()
	}
	all.Wait()
	return nil
}

// engines are engines with the same answers. Its methods are safe for concurrent use.
type engines struct {
	answer, models, missing, ready []byte
	pages                          [][]byte

	mu  sync.Mutex // guards all
	all []*engine

	head, first, event, last, usage, end []byte // of a stream
	pace                                 time.Duration
}

// newEngines makes the answers.
func newEngines(page []byte, busy bool, pace time.Duration) *engines {
	s := &engines{
		pace:    pace,
		ready:   response("200 OK", "text/plain", ""),
		answer:  response("200 OK", "application/json", answerBody),
		models:  response("200 OK", "application/json", modelsBody),
		missing: response("404 Not Found", "application/json", `{"detail":"Not Found"}`),
		head: []byte("HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n" +
			"transfer-encoding: chunked\r\n\r\n"),
		first: event(`[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`, ""),
		event: event(`[{"index":0,"delta":{"content":" fox"},"logprobs":null,"finish_reason":null,"token_ids":null}]`, ""),
		last:  event(`[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length","stop_reason":null}]`, ""),
		usage: event(`[]`, `,"usage":{"prompt_tokens":250,"total_tokens":450,"completion_tokens":200}`),
		end:   append(chunk("data: [DONE]\n\n"), "0\r\n\r\n"...),
	}
	for i := range pages {
		s.pages = append(s.pages, response("200 OK", "text/plain; version=0.0.4; charset=utf-8", string(moved(page, i, busy))))
	}
	return s
}

// response returns an answer with its head.
func response(status, kind, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\nserver: uvicorn\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s",
		status, kind, len(body), body)
}

func chunk(text string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(text), text) }

// event returns an event of a stream as a chunk.
func event(choices, more string) []byte {
	return chunk(`data: {"id":"chatcmpl-adc460712c6257ab","object":"chat.completion.chunk","created":1795228417,"model":"` +
		modelName + `","choices":` + choices + more + "}\n\n")
}

// engine is one engine: what a listener accepts. It is safe for concurrent use.
type engine struct {
	*engines

	lock    sync.Mutex // guards the rest
	scrapes int
	from    time.Time     // when it was last scraped, or the age was last asked for
	worst   time.Duration // longest time between two scrapes
}

// accept serves the connections of a listener until it is closed.
func (s *engines) accept(l net.Listener) {
	e := &engine{engines: s}
	s.mu.Lock()
	s.all = append(s.all, e)
	s.mu.Unlock()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go e.serve(c)
	}
}

// page returns the next page of metrics.
func (e *engine) page() []byte {
	e.lock.Lock()
	defer e.lock.Unlock()
	now := time.Now()
	if e.scrapes > 0 {
		e.worst = max(e.worst, now.Sub(e.from))
	}
	e.scrapes++
	e.from = now
	return e.pages[e.scrapes%pages]
}

// scraped states how engines were scraped. Its JSON is what scrapedPath answers.
type scraped struct {
	Scrapes int `json:"scrapes"` // of all engines, since their start
	// Age is the longest time in seconds between two scrapes of one engine, or since its last one,
	// but for the time before the age was last asked for.
	Age float64 `json:"age"`
}

// scraped returns how the engines were scraped, and counts ages from now on.
func (s *engines) scraped() (is scraped) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.all {
		e.lock.Lock()
		if is.Scrapes += e.scrapes; e.scrapes > 0 {
			is.Age = max(is.Age, e.worst.Seconds(), time.Since(e.from).Seconds())
		}
		e.worst, e.from = 0, time.Now()
		e.lock.Unlock()
	}
	return is
}

// serve answers the requests of a connection, one after the other, until its client closes it.
func (e *engine) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, headLimit)
	small := make([]byte, smallBody)
	for {
		path, length, err := head(r)
		if err != nil {
			return
		}
		body := small[:0]
		if length <= smallBody {
			body = small[:length]
			_, err = io.ReadFull(r, body)
		} else {
			_, err = r.Discard(length)
		}
		if err == nil {
			err = e.reply(c, path, body)
		}
		if err != nil {
			return
		}
	}
}

var errChunked = errors.New("the request's body has no content-length")

// head reads the head of a request.
func head(r *bufio.Reader) (path string, length int, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return "", 0, err
	}
	_, rest, _ := bytes.Cut(line, []byte(" "))
	target, _, _ := bytes.Cut(rest, []byte(" "))
	switch string(target) {
	case "/v1/chat/completions":
		path = "/v1/chat/completions" // allocates nothing
	default:
		path = string(target)
	}
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return "", 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return path, length, nil
		}
		if value, ok := field(line, "content-length"); ok {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return "", 0, err
			}
		} else if _, ok := field(line, "transfer-encoding"); ok {
			return "", 0, errChunked
		}
	}
}

// field returns the value of a line of a head, if it has that name.
func field(line []byte, name string) ([]byte, bool) {
	if len(line) <= len(name) || line[len(name)] != ':' || !bytes.EqualFold(line[:len(name)], []byte(name)) {
		return nil, false
	}
	return bytes.TrimSpace(line[len(name)+1:]), true
}

// reply answers a request.
func (e *engine) reply(c net.Conn, path string, body []byte) (err error) {
	switch path {
	case "/v1/chat/completions":
		if bytes.Contains(body, []byte(`"stream":true`)) {
			usage, hold := bytes.Contains(body, []byte(`"include_usage":true`)), bytes.Contains(body, []byte(`"user":"`+holdUser+`"`))
			return e.stream(c, usage, hold)
		}
		_, err = c.Write(e.answer)
	case "/metrics":
		_, err = c.Write(e.page())
	case "/v1/models":
		_, err = c.Write(e.models)
	case scrapedPath:
		var text []byte
		if text, err = json.Marshal(e.scraped()); err == nil {
			_, err = c.Write(response("200 OK", "application/json", string(text)))
		}
	case readyPath, sinkPath:
		_, err = c.Write(e.ready)
	default:
		_, err = c.Write(e.missing)
	}
	return err
}

// stream writes the events of an answer one by one. If hold is set, it waits after the first until
// the client closes the connection.
func (s *engines) stream(c net.Conn, usage, hold bool) error {
	if _, err := c.Write(append(slices.Clip(s.head), s.first...)); err != nil {
		return err
	}
	if hold {
		_, err := io.Copy(io.Discard, c)
		return errors.Join(err, io.EOF)
	}
	for range events - 2 {
		time.Sleep(s.pace)
		if _, err := c.Write(s.event); err != nil {
			return err
		}
	}
	time.Sleep(s.pace)
	rest := slices.Clip(s.last)
	if usage {
		rest = append(rest, s.usage...)
	}
	_, err := c.Write(append(rest, s.end...))
	return err
}
