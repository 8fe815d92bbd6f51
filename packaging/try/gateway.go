package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/headgate/headgate/internal/process"
)

// patience is how long a gateway may take to start, and to end.
const patience = 30 * time.Second

// gateway is a running "headgate run" at ports of its own.
type gateway struct {
	*process.Process
	listen, admin, metrics, control string
	started                         time.Time
	starter                         process.Starter
	requests                        int
}

// start starts program as "headgate run" with more flags. It keeps its files and logs in dir.
func start(program, dir string, environment []string, flags ...string) (*gateway, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	g := &gateway{listen: ports[0], admin: ports[1], metrics: ports[2], control: ports[3], starter: process.NewStarter()}
	args := append([]string{
		"run", "--run", filepath.Join(dir, "run"), "--listen", g.listen, "--admin", g.admin, "--metrics", g.metrics, "--control-metrics", g.control,
	}, flags...)
	run := exec.Command(program, args...)
	run.Dir, run.Env = dir, environment
	g.started = time.Now()
	if g.Process, err = g.starter.Start("headgate", dir, run); err != nil {
		close(g.starter)
		return nil, err
	}
	return g, nil
}

// stop ends the gateway as Ctrl-C does.
func (g *gateway) stop() {
	g.Signal(os.Interrupt)
	select {
	case <-g.Done():
	case <-time.After(patience):
		g.KillGroup()
	}
	close(g.starter)
}

// answered waits until a chat completion is answered. It returns how long after the start that was,
// and the ID of the request.
func (g *gateway) answered(ctx context.Context) (after time.Duration, id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		g.requests++
		id = fmt.Sprintf("try-%d-%d", g.PID(), g.requests)
		if err = g.request(ctx, id); err == nil {
			return time.Since(g.started), id, nil
		}
		select {
		case <-g.Done():
			return 0, "", errors.New("headgate run ended: " + g.LastWords())
		case <-ctx.Done():
			return 0, "", fmt.Errorf("no request was answered in %v: %w\n%s", patience, err, g.LastWords())
		case <-tick.C:
		}
	}
}

// request sends a chat completion to the demo's base model.
func (g *gateway) request(ctx context.Context, id string) error {
	const body = `{"model": "llama", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]}`
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+g.listen+"/v1/chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Request-Id", id)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, answer)
	}
	return err
}

// freePorts returns addresses on loopback that nothing listens at. All listeners are open at once,
// so that the addresses differ.
func freePorts(n int) (addresses []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addresses = append(addresses, l.Addr().String())
	}
	return addresses, nil
}
