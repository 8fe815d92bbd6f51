package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/process"
)

const (
	// maxRatio is the highest permitted ratio of medians, with the agent to without it.
	maxRatio = 1.1
	// maxCPU is the highest permitted CPU time of the agent per call, in microseconds.
	maxCPU = 15
	// startTimeout limits the start of an engine and of the agent.
	startTimeout = time.Minute
)

// The addresses of the MLServer and of the agent.
const (
	mlserverHost = "127.95.0.1"
	mlserverPort = "8000"
	relayed      = "127.95.0.2:8000"
)

// inferBody is a V2 request with one number for the model of bench/real/mlserver.
const inferBody = `{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP64","data":[2.5]}]}`

// relay measures a V2 call to a real MLServer, directly and through the agent.
func (b *bench) relay(ctx context.Context) error {
	direct := mlserverHost + ":" + mlserverPort
	engine, err := b.startMLServer(ctx, direct)
	if err != nil {
		return err
	}
	defer engine.KillGroup()
	agent, err := b.starter.Start("agent", b.dir, exec.CommandContext(ctx, b.program, "--kind", "mlserver", //nolint:gosec // as built
		"--engine", mlserverHost+":8001", "--engine-data", direct, "--data", relayed))
	if err != nil {
		return err
	}
	defer agent.Kill()
	ready, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := agent.AwaitOK(ready, "http://"+relayed+"/v2/health/live"); err != nil {
		return err
	}
	var without, with, ratios, cpu figures
	ways := []*way{newWay(direct), newWay(relayed)}
	for _, w := range ways {
		defer w.client.CloseIdleConnections()
		if _, err := w.calls(ctx, b.calls); err != nil { // to warm up
			return err
		}
	}
	for round := range b.rounds {
		order := []int{0, 1}
		if round%2 == 1 {
			order = []int{1, 0}
		}
		var median [2]float64
		for _, i := range order {
			before, err := process.CPUTime(agent.PID())
			if err != nil {
				return err
			}
			if median[i], err = ways[i].calls(ctx, b.calls); err != nil {
				return err
			}
			after, err := process.CPUTime(agent.PID())
			if err != nil {
				return err
			}
			if i == 1 {
				cpu = append(cpu, float64((after-before).Microseconds())/float64(b.calls))
			}
		}
		without, with = append(without, median[0]), append(with, median[1])
		ratios = append(ratios, median[1]/median[0])
	}
	fmt.Fprintf(b.out, "relay: a V2 call to MLServer, %d rounds of %d calls each\n", b.rounds, b.calls)
	fmt.Fprintf(b.out, "  without the agent      %s µs\n", without.describe("%.0f"))
	fmt.Fprintf(b.out, "  through the agent      %s µs\n", with.describe("%.0f"))
	fmt.Fprintf(b.out, "  ratio                  %s, at most %.1f\n", ratios.describe("%.3f"), maxRatio)
	fmt.Fprintf(b.out, "  CPU time of the agent  %s µs per call, at most %d\n", cpu.describe("%.1f"), maxCPU)
	if ratios.median() > maxRatio || cpu.median() > maxCPU {
		return errors.New("a limit is exceeded")
	}
	return nil
}

// startMLServer starts a real MLServer with one model, which is loaded.
func (b *bench) startMLServer(ctx context.Context, address string) (*process.Process, error) {
	installed, err := filepath.Abs(filepath.Join(b.cache, "mlserver"))
	if err != nil {
		return nil, err
	}
	const script = "bench/real/mlserver"
	folder := filepath.Join(b.dir, "models")
	if out, err := exec.CommandContext(ctx, script, "model", installed, folder, "m").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s: run make real-repositories first", err, out)
	}
	engine, err := b.starter.Start("mlserver", b.dir, exec.CommandContext(ctx, script, "serve", installed, folder, mlserverHost, mlserverPort))
	if err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = engine.AwaitOK(ready, "http://"+address+"/v2/health/live")
	if err == nil {
		err = newWay(address).post(ctx, "/v2/repository/models/m/load", "{}")
	}
	if err != nil {
		engine.KillGroup()
		return nil, err
	}
	return engine, nil
}

// way is a path to the engine, direct or through the agent, with a persistent connection.
type way struct {
	address string
	client  *http.Client
}

func newWay(address string) *way {
	return &way{address, &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, DisableCompression: true}, Timeout: startTimeout}}
}

// calls makes n calls one after another, and returns their median time in microseconds.
func (w *way) calls(ctx context.Context, n int) (float64, error) {
	times := make(figures, n)
	for i := range times {
		began := time.Now()
		if err := w.post(ctx, "/v2/models/m/infer", inferBody); err != nil {
			return 0, err
		}
		times[i] = float64(time.Since(began).Nanoseconds()) / 1000
	}
	return times.median(), nil
}

func (w *way) post(ctx context.Context, path, body string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.address+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := w.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", path, answer.Status, text)
	}
	return err
}
