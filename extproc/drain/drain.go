// Package drain implements the command drain, which runs beside an Envoy: it waits until Envoy has
// no requests in flight.
package drain

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/cli"
)

const usage = `extproc drain drains the Envoy beside it, so that Envoy can stop without cutting an answer.

At SIGTERM, Envoy stops at once and cuts answers. Run extproc drain before, as the preStop hook of Envoy's container.
First it waits for --delay, until no client opens new connections. Then it drains Envoy's listeners, and returns once no
request is in flight, or after --limit. The pod's terminationGracePeriodSeconds must exceed the sum of both flags.

Usage:

  extproc drain [flags]

`

// poll is how often Envoy's requests in flight are read.
const poll = 100 * time.Millisecond

// tries is the number of attempts of a call to Envoy. A busy Envoy may fail to answer; an Envoy
// that has ended needs no drain.
const tries = 10

// adminTimeout limits a call to Envoy's admin interface, which answers from memory.
const adminTimeout = 5 * time.Second

// Run implements the command "drain". It returns after Envoy has had no request in flight for a
// while. It prints help to out.
func Run(ctx context.Context, args []string, out io.Writer) error {
	fs := cli.Flags("extproc drain", usage, out)
	admin := fs.String("admin", "127.0.0.1:9901", "call Envoy's admin interface at this `HOST:PORT`")
	delay := fs.Duration("delay", 5*time.Second,
		"first keep serving for this long, because load balancers keep sending requests for a while")
	limit := fs.Duration("limit", 5*time.Minute, "then wait at most this long until no request is in flight")
	if err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	if !wait(ctx, *delay) {
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	if _, err := askAgain(ctx, http.MethodPost, *admin, "/drain_listeners?graceful&skip_exit"); err != nil {
		return err
	}
	// Clients may send new requests until they learn that Envoy drains, so Envoy must be idle ten
	// times in a row.
	active := 0
	late := func() error {
		return fmt.Errorf("requests still in flight after %v: %d; Envoy will cut them; set a longer --limit", *limit, active)
	}
	for idle := 0; idle < 10; {
		text, err := askAgain(ctx, http.MethodGet, *admin, "/stats?filter="+url.QueryEscape(`^http\.ingress\.downstream_rq_active$`))
		if err != nil && active > 0 && ctx.Err() != nil {
			return late()
		}
		if err != nil {
			return err
		}
		_, number, _ := strings.Cut(strings.TrimSpace(text), ": ")
		if active, err = strconv.Atoi(number); err != nil {
			return fmt.Errorf("envoy at %s answers %q, not the number of requests in flight: does it run with envoy.yaml?", *admin, text)
		}
		if idle++; active > 0 {
			idle = 0
		}
		if !wait(ctx, poll) {
			return late()
		}
	}
	return nil
}

// askAgain calls ask until it succeeds, up to tries times.
func askAgain(ctx context.Context, method, admin, path string) (string, error) {
	for n := 1; ; n++ {
		text, err := ask(ctx, method, admin, path)
		if err == nil || n == tries || !wait(ctx, poll) {
			return text, err
		}
	}
}

// ask calls Envoy's admin interface and returns the answer.
func ask(ctx context.Context, method, admin, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+admin+path, nil)
	if err != nil {
		return "", err
	}
	response, err := (&http.Client{Timeout: adminTimeout}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: Envoy answered %s: %s", method, path, response.Status, body)
	}
	return string(body), err
}

// wait waits for d. It returns false if ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
