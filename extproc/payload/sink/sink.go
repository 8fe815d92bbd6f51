// Package sink decides which payloads go to which sinks. It builds payloads from a request and its
// answer, and encodes them. A payload is the copy of one message of a gRPC call, or of the body of
// a request or answer that is no gRPC call. The package is pure.
//
// URLs and fields are those of ModelMesh's payload processors.
package sink

import (
	"fmt"
	"net/url"
	"strings"
)

// Sink is a destination for payloads and a filter.
type Sink struct {
	// URL is the http or https address without the filters. It is nil for a logger sink, which logs
	// the existence of payloads without their contents.
	URL *url.URL
	// Model is the id of a model or VModel. Method is a method, as [MethodOf] returns it. An empty
	// Model or Method matches all.
	Model, Method string
}

// Parse parses http(s)://host[:port]/path[?model][#method] or logger://*[?model][#method]. An empty
// model or method, or *, matches all.
func Parse(text string) (Sink, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Sink{}, err
	}
	model, err := url.PathUnescape(u.RawQuery) // unlike QueryUnescape, PathUnescape does not change a plus sign
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

// Wants reports whether the sink gets the payloads of a request with this method and model.
func (s Sink) Wants(method, model, vmodel string) bool {
	return (s.Method == "" || s.Method == method) && (s.Model == "" || s.Model == model || s.Model == vmodel)
}

// String returns the sink's URL for logs, without credentials.
func (s Sink) String() string {
	if s.URL == nil {
		return "logger://*"
	}
	return s.URL.Redacted()
}

// MethodOf returns the method for the path of a request: package.Service/Method for a gRPC call,
// and otherwise the path without its first slash and without its query.
func MethodOf(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return strings.TrimPrefix(path, "/")
}
