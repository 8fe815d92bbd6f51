package openai

import (
	"bytes"
	"mime"
	"regexp"
	"unicode"
)

// maxPartHeader is the maximum size of a part's header in bytes; real headers have about a hundred.
const maxPartHeader = 16 << 10

// maxParts is the maximum number of parts in a form. Engines accept 1,000 fields and 1,000 files
// (Starlette's limits). Without a limit, 32 MiB of headers would occupy a core for a second.
const maxParts = 2000

// fieldName matches the API's field names, such as "timestamp_granularities[]". Clients and servers
// disagree about how to escape other characters.
var fieldName = regexp.MustCompile(`^[A-Za-z0-9_.\[\]-]+$`)

var headerKey = regexp.MustCompile(`^[A-Za-z0-9-]+$`)

// extendedName matches the parameter name* of RFC 2231. Some parsers treat it as name, and others
// ignore it.
var extendedName = regexp.MustCompile(`(?i)[;\s]name\*`)

var errForm = fault("", "The body is not a valid multipart form.")

const formAbsent = "The form has no model: name one of GET /v1/models."

// parseForm parses a form strictly, in the format that every client writes (RFC 7578): no preamble,
// CRLF line ends, one Content-Disposition per part, no transfer encoding. It rejects forms that
// parsers interpret differently. It reads an incomplete form as far as possible.
func parseForm(contentType string, body []byte, whole bool) (Request, error) {
	if len(body) == 0 {
		return Request{}, fault("", "The request has no body: send a multipart form.")
	}
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil || media != "multipart/form-data" || params["boundary"] == "" {
		return Request{}, fault("", "The content type must be multipart/form-data with a boundary.")
	}
	r := Request{op: Form}
	models := 0
	f := form{body: body, delimiter: []byte("\r\n--" + params["boundary"])}
	for parts := 1; f.next(); parts++ {
		if parts > maxParts {
			return Request{}, fault("", "The form has more than 2000 parts.")
		}
		switch f.name {
		case "model":
			models++
			if f.file {
				return Request{}, fault("model", "The model must be a text field, not a file.")
			}
			r.start, r.end = f.start, f.end
		case "stream":
			r.Stream = bytes.EqualFold(body[f.start:f.end], []byte("true"))
		}
	}
	switch {
	case f.broken && whole:
		return Request{}, errForm
	case models == 0 && !whole:
		return Request{}, errNotInPrefix
	case models == 0:
		r.absent = true
		r.before, r.after = "--"+params["boundary"]+"\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n", "\r\n"
		return r, absent(formAbsent)
	case models > 1:
		return Request{}, fault("model", "The form has more than one model.")
	}
	if r.start == r.end {
		r.absent = true
		return r, absent(formAbsent)
	}
	r.Model = string(body[r.start:r.end])
	if err := CheckText(r.Model); err != nil {
		return Request{}, err
	}
	return r, nil
}

// form iterates over the parts of a multipart body.
type form struct {
	body      []byte
	delimiter []byte // "\r\n--boundary"
	at        int    // index after the last delimiter; 0 before the first delimiter

	// The current part: its name and the fields below.
	name       string
	file       bool
	start, end int

	broken bool
}

// next finds the next part. It returns false after the last part. It sets broken if the form is
// invalid.
func (f *form) next() bool {
	if f.at == 0 {
		// The first delimiter may be at the very beginning, without a line end before it.
		if !bytes.HasPrefix(f.body, f.delimiter[2:]) {
			return f.fail()
		}
		f.at = len(f.delimiter) - 2
	}
	rest := f.body[f.at:]
	if after, ok := bytes.CutPrefix(rest, []byte("--")); ok {
		if len(after) > 0 && string(after) != "\r\n" {
			return f.fail() // some parsers read text after the last part
		}
		return false
	}
	if !bytes.HasPrefix(rest, []byte("\r\n")) {
		return f.fail()
	}
	header := rest[:min(len(rest), maxPartHeader)]
	blank := bytes.Index(header, []byte("\r\n\r\n"))
	if blank < 0 || !f.header(header[2:max(blank, 2)]) {
		return f.fail()
	}
	f.start = f.at + blank + 4
	content := f.body[f.start:]
	size := bytes.Index(content, f.delimiter)
	// Some parsers take a boundary at the beginning of a part's content for the end of an empty
	// part.
	if size < 0 || bytes.HasPrefix(content, f.delimiter[2:]) {
		return f.fail()
	}
	f.end = f.start + size
	f.at = f.end + len(f.delimiter)
	return true
}

func (f *form) fail() bool {
	f.broken = true
	return false
}

// header parses the header of a part. It reports whether the header has the format that every
// client writes.
func (f *form) header(header []byte) bool {
	f.name, f.file = "", false
	for line := range bytes.SplitSeq(header, []byte("\r\n")) {
		key, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || !headerKey.Match(key) || bytes.ContainsFunc(value, unicode.IsControl) {
			return false
		}
		switch string(bytes.ToLower(key)) {
		case "content-transfer-encoding":
			return false // some parsers decode such a part
		case "content-disposition":
			media, params, err := mime.ParseMediaType(string(value))
			if err != nil || media != "form-data" || f.name != "" || !fieldName.MatchString(params["name"]) || extendedName.Match(value) {
				return false
			}
			f.name = params["name"]
			_, f.file = params["filename"]
		}
	}
	return f.name != ""
}
