package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/api/admin"
)

// askTimeout is how long control or extproc may take to answer a command. It is longer than control
// waits for extprocs.
const askTimeout = 7 * time.Second

// Addresses are the URLs at which a command asks control and extproc.
type Addresses struct{ Control, Extproc string }

// Register adds the flags of the addresses. The defaults are those of the headgate run in the
// working folder, if there is one.
func (a *Addresses) Register(fs *pflag.FlagSet) {
	local := InThisFolder()
	fs.StringVar(&a.Control, "control-url", urlOf(local.Control),
		"ask the control that serves metrics at this `URL`, which asks all its extprocs; empty means no control")
	fs.StringVar(&a.Extproc, "extproc-url", urlOf(local.Extproc),
		"ask the extproc that serves metrics at this `URL` if control does not answer; empty means no extproc")
}

// Check returns an error if an address is no URL.
func (a *Addresses) Check() error {
	for _, f := range []struct {
		flag string
		url  *string
	}{{"control-url", &a.Control}, {"extproc-url", &a.Extproc}} {
		if *f.url == "" {
			continue
		}
		u, err := url.Parse(*f.url)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("--%s %q: want http://HOST:PORT", f.flag, *f.url)
		}
		*f.url = strings.TrimSuffix(u.String(), "/")
	}
	if a.Control == "" && a.Extproc == "" {
		return errors.New("set --control-url or --extproc-url: there is nobody to ask")
	}
	return nil
}

// Reply is the answer to [Addresses.Ask].
type Reply struct {
	admin.Answers
	// By is the URL of the control or extproc that answered.
	By string
	// Instead is why extproc answered in place of a control that runs. It is nil if control
	// answered, or if no process listens at its URL.
	Instead error
}

// Note returns the reason in Instead as a sentence for people; empty if there is none.
func (r *Reply) Note() string {
	if r.Instead == nil {
		return ""
	}
	return r.Instead.Error() + ". The extproc at " + r.By + " answered instead"
}

// Ask asks control. If control has no answer from any extproc, Ask asks extproc itself. An error is
// one line, and contains what to do.
func (a *Addresses) Ask(ctx context.Context, kind string, body []byte) (Reply, error) {
	var all []error
	var instead error
	for _, at := range []string{a.Control, a.Extproc} {
		if at == "" {
			continue
		}
		answers, err := From(ctx, at, kind, body)
		if err == nil && len(answers.Extprocs) > 0 {
			return Reply{answers, at, instead}, nil
		}
		if err == nil {
			err = Unconnected{at}
		}
		all = append(all, err)
		if !nobody(err) {
			instead = err
		}
	}
	if len(all) == 2 && nobody(all[0]) && nobody(all[1]) {
		return Reply{}, fmt.Errorf("neither control nor extproc listens at %s and %s: start them, set --control-url or --extproc-url to the URL of their metrics, "+
			"or run kubectl port-forward to a pod of control first", a.Control, a.Extproc)
	}
	return Reply{}, failures(all)
}

// failures are the errors of control and extproc, on one line.
type failures []error

func (f failures) Error() string {
	alone, is := errors.AsType[Unconnected](f)
	if none, also := errors.AsType[Nobody](f); is && also {
		return "no extproc is connected to the control at " + alone.URL + ", and none listens at " + none.URL +
			": start it with --control; if it runs, its log names the error"
	}
	var all []string
	for _, err := range f {
		all = append(all, err.Error())
	}
	return strings.Join(all, "; ")
}

func (f failures) Unwrap() []error { return f }

// nobody reports whether an error is that no process listens.
func nobody(err error) bool {
	_, is := errors.AsType[Nobody](err)
	return is
}

// From asks the control or extproc at a URL, http://HOST:PORT. The body is that of the query.
func From(ctx context.Context, at, kind string, body []byte) (answers admin.Answers, err error) {
	method, path := http.MethodGet, "/"+kind
	switch kind {
	case admin.Decisions:
		var q admin.DecisionsQuery
		if err := json.Unmarshal(body, &q); err != nil {
			return answers, err
		}
		path, body = path+"?id="+url.QueryEscape(q.ID), nil
	case admin.Explain:
		method = http.MethodPost
	}
	return answers, JSON(ctx, method, at, path, body, &answers)
}

// Nobody is the error of [JSON] if no process listens at a URL.
type Nobody struct{ URL string }

func (n Nobody) Error() string {
	return "no process listens at " + n.URL + ": start control or extproc, or set the URL of its metrics"
}

// Unconnected is the error of [Addresses.Ask] if no extproc is connected to the control at a URL.
type Unconnected struct{ URL string }

func (u Unconnected) Error() string {
	return "no extproc is connected to the control at " + u.URL + ": the log of extproc names the error; check its flags " +
		"--control, --control-token-file and --control-ca-file"
}

// Silent is the error of [JSON] if the process at a URL hangs or is overloaded.
type Silent struct{ URL string }

func (s Silent) Error() string {
	return fmt.Sprintf("%s has not answered within %v: the process hangs or is overloaded", s.URL, askTimeout)
}

// JSON sends a request to a path of the control or extproc at a URL, http://HOST:PORT, and reads
// the answer. An error is one line that says what to do.
func JSON(ctx context.Context, method, at, path string, body []byte, to any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, at+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/json")
	}
	name, _, _ := strings.Cut(path, "?")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Nobody{at}
	case errors.Is(err, context.DeadlineExceeded):
		return Silent{at}
	case err != nil:
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 2048))
		words := strings.Join(strings.Fields(string(text)), " ")
		switch missing := words == "" || strings.HasPrefix(words, "404 "); {
		case response.StatusCode == http.StatusNotFound && missing, response.StatusCode == http.StatusMethodNotAllowed:
			return fmt.Errorf("%s has no %s: it is an older version, which must be upgraded, or another program", at, name)
		case response.StatusCode == http.StatusServiceUnavailable, response.StatusCode == http.StatusNotFound:
			return fmt.Errorf("%s: %s", at, words)
		}
		return fmt.Errorf("%s answers %d: %s", at, response.StatusCode, words)
	}
	err = json.NewDecoder(response.Body).Decode(to)
	if errors.Is(err, context.DeadlineExceeded) {
		return Silent{at}
	}
	if err != nil {
		return fmt.Errorf("%s is another version of Headgate, or another program: its answer to %s cannot be read (%w)", at, name, err)
	}
	return nil
}
