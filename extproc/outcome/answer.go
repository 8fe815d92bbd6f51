package outcome

import (
	"bytes"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/engine"
)

// Answer reads an engine's answer as it passes, for data planes that show it to extproc: its status and headers, then
// its body chunk by chunk, cut anywhere. It keeps next to nothing of it. The zero Answer is ready; times are arguments.
type Answer struct {
	began     bool
	status    int
	load      engine.Load
	later     bool // it has a Retry-After
	firstBody time.Time
	opened    time.Time // when a stream had its first event that may have come with the first token
	words     []byte    // the beginning of an error
	events    *events
	json      *scanner
}

// Headers reads the answer's headers, of which it needs few.
func (a *Answer) Headers(status int, contentType, loadReport, retryAfter string) {
	*a = Answer{began: true, status: status, later: retryAfter != ""}
	if loadReport != "" {
		a.load, _ = engine.ReadReport(loadReport) // unknown if it makes no sense
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

// isJSON says whether a media type is JSON's, or of another format that is written in it.
func isJSON(mediaType string) bool {
	kind, ok := strings.CutPrefix(mediaType, "application/")
	return ok && (kind == "json" || strings.HasSuffix(kind, "+json"))
}

// IsEventStream says whether a content type is that of a stream of server-sent events.
func IsEventStream(contentType string) bool { return mediaType(contentType) == "text/event-stream" }

// Body reads the next bytes of the body, which arrived at a time.
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

// Began says whether the answer did.
func (a *Answer) Began() bool { return a.began }

// Fill writes what the answer of o.Endpoint told into an outcome whose request was whole at a time.
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
		o.Carries(s.errorType, s.errorCode)
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

// events reads server-sent events: the JSON of their data lines. Comments, which engines send to keep a connection
// alive, and events that only open a stream are no output.
type events struct {
	json   scanner
	output bool // there was output
	vague  bool // there was an event that may have come with the first token
	line   lineKind
	field  []byte // the beginning of a line, while it may be a data field
	data   []byte // the data line so far, until there is output
}

// maxEvent bounds what is kept of an event.
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

// judge says of a whole data line whether it is output.
func (e *events) judge() {
	has, vague := output(e.data)
	e.output, e.vague = has, e.vague || vague
	if has {
		e.data = nil
	}
}

// begin reads what tells of which kind a line is, and returns the rest.
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
