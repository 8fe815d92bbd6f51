package command

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"syscall"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/options"
	"github.com/headgate/headgate/extproc/serve"
	"github.com/headgate/headgate/internal/listen"
)

// settleTimeout limits how long a process that takes over waits until it has as much state as the
// running process. A scrape that an engine does not answer ends after one second, and a failed
// connection to control is retried after two.
const settleTimeout = 10 * time.Second

// settle waits until the fleet has scraped all its endpoints and has the state of control, for at
// most settleTimeout.
func settle(ctx context.Context, f *fleet.Fleet, log *slog.Logger) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(settleTimeout); !f.Settled(); {
		select {
		case <-tick.C:
		case <-limit:
			log.Warn("taking over although some endpoints or control have not answered yet", "after", settleTimeout.String())
			return
		case <-ctx.Done():
			return
		}
	}
}

// serveMetrics serves metrics until ctx ends. If this process takes over from another one, it first
// waits until the other process has closed the port.
func serveMetrics(ctx context.Context, c options.Options, handler http.Handler, log *slog.Logger) error {
	l, err := serve.Listen("metrics-port", c.MetricsHost, c.MetricsPort)
	for told := false; c.Serve.TakeOver && errors.Is(err, syscall.EADDRINUSE); told = true {
		if !told {
			log.Info("waiting for the other extproc to free the metrics port", "port", c.MetricsPort)
		}
		select {
		case <-time.After(portRetry):
		case <-ctx.Done():
			return nil
		}
		l, err = serve.Listen("metrics-port", c.MetricsHost, c.MetricsPort)
	}
	if err != nil {
		return err
	}
	log.Info("serving metrics", "address", l.Addr().String())
	return listen.HTTP(ctx, l, handler)
}

// portRetry is the time between two attempts to listen on a port that another process uses.
const portRetry = 100 * time.Millisecond
