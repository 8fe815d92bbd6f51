package rig

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// withAgent is the value of SimulateLabel for engines behind agents.
const withAgent = "agent"

// mlserverModels is the folder of MLServer's models below the agent's --models-dir.
const mlserverModels = "_mlserver_models"

// mlserverHTTP, mlserverGRPC and mlserverMetrics are ports of an MLServer behind an agent, on the
// agent's IP.
const mlserverHTTP, mlserverGRPC, mlserverMetrics = 9000, 9001, 9002

// hasAgent reports whether an agent serves at an address.
func (r *Rig) hasAgent(address string) bool {
	return r.endpoint(address).Labels[SimulateLabel] == withAgent
}

// endpoint returns the endpoint at an address; an empty one if there is none.
func (r *Rig) endpoint(address string) objects.Endpoint {
	for _, p := range r.world.Pools {
		for _, e := range p.Endpoints {
			if e.Address == address {
				return e
			}
		}
	}
	return objects.Endpoint{}
}

// startBehindAgent starts the engine of the endpoint at an address, and an agent that serves it
// there.
func (r *Rig) startBehindAgent(address string) error {
	host := hostOf(address)
	dir, err := filepath.Abs(filepath.Join(r.Dir, "engine-"+host))
	if err != nil {
		return err
	}
	models := filepath.Join(dir, "models")
	if err := os.MkdirAll(filepath.Join(models, mlserverModels), 0o755); err != nil {
		return err
	}
	run, args, err := r.behindAgent(address, dir, models)
	if err != nil {
		return err
	}
	if r.Engines[address], err = r.starter.Start("engine-"+host, r.Dir, run); err != nil {
		return err
	}
	args = append(args, "--management", r.endpoint(address).Management, "--data", address, "--models-dir", models,
		"--health-address", agentHealth(address))
	r.Agents[address], err = r.starter.Start("agent-"+host, r.Dir, exec.Command(r.Programs.Agent, args...))
	return err
}

// behindAgent returns the command of an engine behind an agent, and the agent's flags for it.
func (r *Rig) behindAgent(address, dir, models string) (run *exec.Cmd, args []string, err error) {
	if r.MLServer == "" {
		management, data := filepath.Join(dir, "management.sock"), filepath.Join(dir, "data.sock")
		run := exec.Command(r.Programs.Headgate, "engine", "--kind", string(engine.ModelRuntime), "--management", "unix:"+management,
			"--uds", data, "--event-log", r.EventLog(address))
		return run, []string{"--kind", string(engine.ModelRuntime), "--engine", "unix:" + management, "--engine-data", "unix:" + data}, nil
	}
	host, folder := hostOf(address), filepath.Join(models, mlserverModels)
	settings, err := json.Marshal(map[string]any{
		"host": host, "http_port": mlserverHTTP, "grpc_port": mlserverGRPC, "metrics_port": mlserverMetrics,
		"load_models_at_startup": false,
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "settings.json"), settings, 0o644)
	}
	run = exec.Command(r.MLServer, "start", ".")
	run.Dir = folder
	at := func(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
	return run, []string{
		"--kind", string(engine.MLServer), "--engine", at(mlserverHTTP), "--engine-protocol", "http", "--engine-data", at(mlserverGRPC),
		"--memory-request", "1Gi",
	}, err
}

// agentHealth returns where the agent that serves at an address serves its health.
func agentHealth(address string) string { return net.JoinHostPort(hostOf(address), "8087") }

// awaitEngine waits until the engine at an address answers requests.
func (r *Rig) awaitEngine(ctx context.Context, address string) error {
	if agent := r.Agents[address]; agent != nil {
		return agent.AwaitOK(ctx, "http://"+agentHealth(address)+"/ready")
	}
	return r.Engines[address].AwaitOK(ctx, "http://"+address+"/health")
}
