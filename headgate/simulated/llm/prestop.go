package llm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/cli"
)

const preStopUsage = `Waits, in the preStop hook of a simulated engine, until control has moved the models of the pod to other endpoints.
The environment variables POD_NAMESPACE and POD_NAME name the pod. If control does not answer, or has no leader, it
retries each second.

Usage:

  bench prestop [flags] URL

Example:

  bench prestop --within 25s http://headgate-control.headgate-system:8036/prestop

`

// PreStop is the preStop hook of an engine: it waits until control permits the pod to end.
func PreStop(ctx context.Context, args []string, out io.Writer) error {
	f := cli.Flags("bench prestop", preStopUsage, out)
	within := f.Duration("within", 25*time.Second,
		"give up after this `DURATION`: that of the annotation of the pod, or some seconds more")
	if err := cli.Parse(f, args, 1); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return f.Wrong(errors.New("the URL of control is missing"))
	}
	pod := os.Getenv("POD_NAMESPACE") + "/" + os.Getenv("POD_NAME") //nolint:forbidigo // a command
	return WaitForControl(ctx, strings.TrimSuffix(f.Arg(0), "/")+"/"+pod, *within, out)
}

// askAgain is the time between two requests to control.
const askAgain = time.Second

// WaitForControl sends requests to url until control answers, and writes the answer to out. It
// gives up after the duration within.
func WaitForControl(ctx context.Context, url string, within time.Duration, out io.Writer) error {
	ctx, stop := context.WithTimeout(ctx, within)
	defer stop()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for {
		code, words, err := askControl(ctx, client, url)
		switch {
		case err == nil && code == http.StatusOK:
			_, err = io.WriteString(out, words)
			return err
		case err == nil && code != http.StatusServiceUnavailable:
			return fmt.Errorf("control answered %d: %s", code, strings.TrimSpace(words))
		case err == nil:
			err = errors.New(strings.TrimSpace(words))
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return fmt.Errorf("control has not answered within %v: %w", within, err)
		}
	}
}

func askControl(ctx context.Context, client *http.Client, url string) (code int, words string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}
