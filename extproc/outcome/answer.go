package outcome

import (
	"bytes"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/engine"
)

// Answer parses an engine's response while it passes through a data plane that sends it to extproc:
// the status and headers, then the body in chunks of any size. It stores only a few bytes. The zero
// Answer is ready for use. Callers pass all times as arguments.
type Answer struct {
	began     bool
	status    int
	load      engine.Load
	later     bool // the response has a Retry-After header
	firstBody time.Time
	opened    time.Time // time of a stream's first event that may contain the first token
	words     []byte    // beginning of an error's text
	events    *events
	json      *scanner
}

// Headers reads the headers that an outcome needs.
func (a *Answer) Headers(status int, contentType, loadReport, retryAfter string) {
	*a = Answer{began: true, status: status, later: retryAfter != ""}
	if loadReport != "" {
		a.load, _ = engine.ReadReport(loadReport) // an invalid report is treated as unknown
	}
	switch {
	case IsEventStream(contentType):
		a.events = new(events)
	case contentType == "", isJSON(mediaType(contentType)):
		a.json = new(scanner)
	}
}

func mediaType(contentType string) string {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

// isJSON reports whether a media type is JSON or a format based on it.
func isJSON(mediaType string) bool {
	kind, ok := strings.CutPrefix(mediaType, "application/")
	return ok && (kind == "json" || strings.HasSuffix(kind, "+json"))
}

// IsEventStream reports whether a content type is that of server-sent events.
func IsEventStream(contentType string) bool { return mediaType(contentType) == "text/event-stream" }

// Body reads the next bytes of the body. At is the time when they arrived.
func (a *Answer) Body(chunk []byte, at time.Time) {
	if len(chunk) == 0 {
		return
	}
	if (a.status >= 500 || a.status == 404) && len(a.words) < engine.MaxWords {
		a.words = append(a.words, chunk[:min(len(chunk), engine.MaxWords-len(a.words))]...)
	}
	began := true
	switch {
	case a.events != nil:
		a.events.read(chunk)
		began = a.events.output
		if a.events.vague && a.opened.IsZero() {
			a.opened = at
		}
	case a.json != nil:
		a.json.read(chunk)
	}
	if began && a.firstBody.IsZero() {
		a.firstBody = at
	}
}

// Began reports whether the response has started.
func (a *Answer) Began() bool { return a.began }

// Fill adds the results of the response to an outcome. Sent is when the request was complete.
func (a *Answer) Fill(o *Outcome, sent time.Time) {
	o.Status, o.Load = a.status, a.load
	if !a.firstBody.IsZero() {
		o.FirstBody = a.firstBody.Sub(sent)
		if !a.opened.IsZero() {
			o.FirstBody = FirstOutput(o.FirstBody, a.opened.Sub(sent))
		}
	}
	s := a.json
	if a.events != nil {
		s, o.Stream = &a.events.json, true
	}
	if s != nil {
		o.Prompt, o.Completion = s.counts.Tokens()
		o.ResponseID = s.id
		kind, code, message := s.errorType, s.errorCode, s.message
		if kind == "" && a.status >= 500 {
			kind, code, message = flat(a.words)
		}
		o.Carries(kind, code)
		o.Says(message)
	}
	elsewhere, stopping := engine.Elsewhere(a.status, a.later, a.words)
	if elsewhere {
		o.Elsewhere = []string{o.Endpoint}
	}
	if engine.Missing(a.status, a.words) {
		o.Missing = []string{o.Endpoint}
	}
	if stopping {
		o.Stopping = []string{o.Endpoint}
	}
}

// events parses server-sent events: the JSON in their data lines. Comments, which engines send to
// keep a connection alive, and events that only open a stream are not output.
type events struct {
	json   scanner
	output bool // whether any event had output
	vague  bool // whether an event may have contained the first token
	line   lineKind
	field  []byte // beginning of a line, while it may be the name of a data field
	data   []byte // the current data line, until any event has output
}

// maxEvent is the maximum size of the stored part of an event.
const maxEvent = 64 << 10

type lineKind uint8

const (
	lineBegins lineKind = iota
	lineOfData
	lineOfOther
)

var dataField = []byte("data:")

func (e *events) read(chunk []byte) {
	for len(chunk) > 0 {
		if e.line == lineBegins {
			chunk = e.begin(chunk)
			continue
		}
		end := bytes.IndexAny(chunk, "\r\n")
		part := chunk
		if end >= 0 {
			part = chunk[:end]
		}
		if e.line == lineOfData {
			e.json.read(part)
			if !e.output && len(e.data)+len(part) <= maxEvent {
				e.data = append(e.data, part...)
			}
		}
		if end < 0 {
			return
		}
		if e.line == lineOfData && !e.output {
			e.judge()
		}
		e.line, e.field = lineBegins, e.field[:0]
		chunk = chunk[end+1:]
	}
}

// judge decides whether a complete data line is output.
func (e *events) judge() {
	has, vague := output(e.data)
	e.output, e.vague = has, e.vague || vague
	if has {
		e.data = nil
	}
}

// begin reads the name of a line's field, and returns the rest.
func (e *events) begin(chunk []byte) []byte {
	c := chunk[0]
	if c == '\r' || c == '\n' {
		e.field = e.field[:0]
		return chunk[1:]
	}
	e.field = append(e.field, c)
	switch {
	case bytes.Equal(e.field, dataField):
		e.line, e.data = lineOfData, e.data[:0]
		e.json.restart()
	case !bytes.HasPrefix(dataField, e.field):
		e.line = lineOfOther
	}
	return chunk[1:]
}
