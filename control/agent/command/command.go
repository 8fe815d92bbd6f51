// Package command is the command line of the agent: it reads the flags, connects the packages and
// runs them.
//
// files fetches the files of models, and fetch reads them from storage. manage serves
// mmesh.ModelRuntime for one engine, adapters serves the calls for LoRA adapters of vLLM and
// SGLang, and relay passes requests.
package command

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
	"github.com/headgate/headgate/control/agent/layout"
	"github.com/headgate/headgate/control/agent/manage"
	"github.com/headgate/headgate/control/agent/relay"
	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/internal/objects"
)

const (
	// stateFile is the file below --models-dir that stores the incarnation of the engine.
	stateFile = "_engine.json"
	// endTimeout is how long running management calls may take after the last request has ended.
	endTimeout = 5 * time.Second
	// headerTimeout limits how long a client may take to send a request's headers.
	headerTimeout = 5 * time.Second
)

// Run runs the agent until ctx ends and the last relayed connection has ended. It writes help to
// out, and the log to logs. It returns pflag.ErrHelp after it has printed help.
func Run(ctx context.Context, args []string, getenv func(string) string, out, logs io.Writer) error {
	c, err := parseFlags(args, getenv, out)
	if err != nil {
		return err
	}
	a := &agent{
		config: c, log: slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: c.logLevel})),
		registry: prometheus.NewRegistry(), failed: make(chan error, 4),
	}
	err = a.open()
	if err == nil {
		err = a.run(ctx)
	}
	return errors.Join(err, a.close())
}

// agent is a running agent.
type agent struct {
	config
	log      *slog.Logger
	registry *prometheus.Registry
	token    func() string // nil for none
	key      func() string // nil for none
	tls      *tls.Config   // for gRPC; nil for none
	stored   *stored
	relay    *relay.Relay // nil without --data
	failed   chan error   // errors of servers
	ends     []func() error
}

// close releases what open has opened, in reverse order.
func (a *agent) close() error {
	var errs []error
	for _, end := range slices.Backward(a.ends) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// open reads the files that flags name, and opens the folder of models.
func (a *agent) open() (err error) {
	if a.tokenFile != "" {
		file, err := engineclient.OpenToken(a.tokenFile, a.log)
		if err != nil {
			return fmt.Errorf("--token-file: %w", err)
		}
		a.token = file.Token
	}
	if a.engineKey != "" {
		file, err := engineclient.OpenToken(a.engineKey, a.log)
		if err != nil {
			return fmt.Errorf("--engine-key-file: %w", err)
		}
		a.key = file.Token
	}
	if a.certPath != "" {
		if a.tls, err = listen.TLS(a.certPath, a.log); err != nil {
			return err
		}
	}
	a.stored = &stored{dir: a.storageConfig, log: a.log}
	if _, err := a.stored.entries(); err != nil {
		return fmt.Errorf("--storage-config: %w", err)
	}
	if a.management == "" || !a.helper {
		return nil
	}
	options := fetch.Options{
		Allow: a.allow, ClaimsDir: a.claimsDir, HubEndpoint: a.hubEndpoint, HubToken: a.hubToken, Log: a.log,
	}
	a.stored.files, err = files.Open(files.Config{
		Dir: a.modelsDir, Limit: int64(a.disk), Log: a.log,
		Open: func(ctx context.Context, s storage.Source) (fetch.Remote, error) { return fetch.Open(ctx, s, options) },
	})
	if err != nil {
		return fmt.Errorf("--models-dir: %w", err)
	}
	a.ends = append(a.ends, a.stored.files.Close)
	return a.registry.Register(a.stored.files)
}

// run serves until ctx ends. Then it relays until the last connection has ended, while management
// goes on, since control moves the models meanwhile.
func (a *agent) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wait sync.WaitGroup
	defer wait.Wait()
	if a.data != "" {
		if err := a.openRelay(); err != nil {
			return err
		}
	}
	health, err := a.serveHealth(ctx)
	if err != nil {
		return err
	}
	defer health()
	management, err := a.serveManagement(&wait)
	if err != nil {
		return err
	}
	defer management()
	relayed := make(chan struct{})
	wait.Go(func() {
		defer close(relayed)
		if a.relay == nil {
			<-ctx.Done()
		} else if err := a.relay.Run(ctx); err != nil {
			a.failed <- err
		}
	})
	a.log.Info("the agent is running", "kind", string(a.kind), "engine", a.at.String())
	select {
	case err = <-a.failed:
	case <-ctx.Done():
		a.log.Info("the agent is ending: it relays until the last connection ends")
	}
	stop()
	<-relayed
	return err
}

func (a *agent) openRelay() (err error) {
	c := relay.Config{Listen: a.data, Engine: a.dataAt, Log: a.log, Metrics: a.registry}
	if a.certPath != "" {
		if c.TLS, err = relay.TLS(a.certPath, a.log); err != nil {
			return err
		}
	}
	a.relay, err = relay.New(c)
	return err
}

// ready reports whether the agent takes new requests.
func (a *agent) ready(ctx context.Context, running context.Context) error {
	if running.Err() != nil {
		return errors.New("the agent is ending")
	}
	switch {
	case a.adapters():
		return a.at.Healthy("/health")(ctx)
	case a.relay != nil:
		return a.relay.Ready(ctx)
	}
	conn, err := a.at.Dial(ctx)
	if err != nil {
		return err
	}
	return conn.Close()
}

// serveHealth serves the health port until the function that it returns is called. That waits for
// hooks that still run.
func (a *agent) serveHealth(running context.Context) (end func(), err error) {
	if a.healthAddress == "" {
		return func() {}, nil
	}
	pod, _ := objects.ParseName(a.pod)
	return a.serveHTTP("health-address", a.healthAddress, nil, relay.Health(relay.HealthConfig{
		Ready:    func(ctx context.Context) error { return a.ready(ctx, running) },
		Gatherer: a.registry, Control: a.prestopControl, Pod: pod, Log: a.log,
	}), 0)
}

// serveHTTP serves HTTP until the function that it returns is called. That waits for running
// requests, for timeout if that is above 0.
func (a *agent) serveHTTP(flag, address string, secure *tls.Config, handler http.Handler, timeout time.Duration) (end func(), err error) {
	l, err := listen.On(flag, address)
	if err != nil {
		return nil, err
	}
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.failed <- fmt.Errorf("--%s: %w", flag, err)
		}
	}()
	return func() {
		ctx, cancel := context.Background(), func() {}
		if timeout > 0 {
			ctx, cancel = context.WithTimeout(ctx, timeout)
		}
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	}, nil
}

// serveManagement serves control until the function that it returns is called.
func (a *agent) serveManagement(wait *sync.WaitGroup) (end func(), err error) {
	switch {
	case a.management == "":
		return func() {}, nil
	case a.adapters():
		return a.serveAdapters(wait)
	}
	e, err := a.openEngine()
	if err != nil {
		return nil, err
	}
	c := manage.Config{Engine: e, Storage: a.stored, Token: a.token, Log: a.log}
	if a.stored.files != nil {
		c.StateFile = filepath.Join(a.modelsDir, stateFile)
	}
	s, err := manage.New(c)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	l, err := listen.On("management", a.management)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	options := append(s.Options(), grpc.WaitForHandlers(true))
	if a.tls != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(a.tls)))
	}
	server := grpc.NewServer(options...)
	s.Register(server)
	go func() {
		if err := server.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
			a.failed <- fmt.Errorf("--management: %w", err)
		}
	}()
	return func() {
		if err := s.Close(); err != nil { // ends loads, so that calls end soon
			a.log.Warn("cannot close the connection to the engine", "err", err)
		}
		timer := time.AfterFunc(endTimeout, server.Stop)
		defer timer.Stop()
		server.GracefulStop()
	}, nil
}

// openEngine returns the engine in the form that package manage needs.
func (a *agent) openEngine() (manage.Engine, error) {
	if a.kind == engine.ModelRuntime {
		return manage.OpenRuntime(a.at.String())
	}
	adapter, _ := layout.AdapterOf(a.kind)
	limits := manage.Limits{
		Bytes: int64(a.memoryRequest - a.memoryBuffer), DefaultBytes: int64(a.defaultSize), SizeFactor: a.sizeFactor, Loads: a.loads,
		LoadTimeout: a.loadTimeout, Concurrency: a.concurrency, Methods: adapter.Methods, Version: a.version,
	}
	dir, err := filepath.Abs(a.modelsDir)
	if err != nil {
		return nil, fmt.Errorf("--models-dir: %w", err)
	}
	l, _ := layout.For(a.kind, dir)
	if err := l.Prepare(); err != nil {
		return nil, fmt.Errorf("--models-dir: %w", err)
	}
	e := loader.Endpoint{
		Address: a.at.Address, Management: a.at.Address, GRPC: a.at.Address, HTTP: a.at.Address, Kind: a.kind,
		RepositoryOverGRPC: a.protocol == grpcProtocol, ModelList: l.ConfigFile(),
	}
	if !a.helper {
		return manage.Drive(e, limits, nil, a.log)
	}
	return manage.Drive(e, limits, laidOut{l}, a.log)
}
