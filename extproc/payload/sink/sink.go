// Package sink says which payloads go to which sinks, how they are made of a request and its
// answer, and how they are written: a payload is the copy of one message of a gRPC call, or of the
// one body of another request or its answer. It is pure.
//
// Its words are those of ModelMesh's payload processors, whose URLs and fields it reads and writes.
package sink

import (
	"fmt"
	"net/url"
	"strings"
)

// Sink is where payloads go, and which.
type Sink struct {
	// URL is where they are posted, http or https, without the filters; nil of one that logs what
	// payloads are, and not what is in them.
	URL *url.URL
	// Model is the id of the model or VModel whose payloads are wanted, and Method the method, as
	// of [MethodOf]; empty for all.
	Model, Method string
}

// Parse reads http(s)://host[:port]/path[?model][#method] or logger://*[?model][#method]. A model
// or method that is empty or * is any.
func Parse(text string) (Sink, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Sink{}, err
	}
	model, err := url.PathUnescape(u.RawQuery) // a + is one
	if err != nil {
		return Sink{}, err
	}
	s := Sink{Model: filter(model), Method: strings.TrimPrefix(filter(u.Fragment), "/")}
	switch {
	case u.Scheme == "logger" && u.User == nil:
		return s, nil
	case u.Scheme != "http" && u.Scheme != "https":
		return Sink{}, fmt.Errorf("%s: want http://, https:// or logger://*", u.Redacted())
	case u.Hostname() == "":
		return Sink{}, fmt.Errorf("%s: it names no host", u.Redacted())
	}
	s.URL = &url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return s, nil
}

func filter(text string) string {
	if text == "*" {
		return ""
	}
	return text
}

// Wants says whether the payloads of a request go to the sink.
func (s Sink) Wants(method, model, vmodel string) bool {
	return (s.Method == "" || s.Method == method) && (s.Model == "" || s.Model == model || s.Model == vmodel)
}

// String names the sink in logs, without what lets somebody in.
func (s Sink) String() string {
	if s.URL == nil {
		return "logger://*"
	}
	return s.URL.Redacted()
}

// MethodOf is the method of a request, by its path: package.Service/Method of a gRPC call, and of
// any other the path without its first slash and its query.
func MethodOf(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return strings.TrimPrefix(path, "/")
}
