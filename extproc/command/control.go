package command

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/options"
	"github.com/headgate/headgate/extproc/placementclient"
	"github.com/headgate/headgate/extproc/relay"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/serve"
	"github.com/headgate/headgate/internal/engineclient"
)

// newFleet returns the fleet, and the queue of requests that wait. If the command line names a
// control, it also returns a function that exchanges messages with control until its context ends.
func newFleet(c options.Options, log *slog.Logger) (*fleet.Fleet, *flow.Flow, func(context.Context, *metrics.Meter, about) error, error) {
	var f *fleet.Fleet
	alone, news := c.Control.Address == "", placementclient.NewNews()
	var others *flow.Turns // nil without control
	if !alone {
		others = flow.NewTurns()
	}
	held := flow.New(flow.Config{
		View: func() *endpointstate.View { return f.View() }, MaxQueued: c.MaxQueued, MaxBytes: c.MaxQueuedMiB << 20, Changed: news.Changed,
		Alone: alone, Turns: others,
	})
	f = fleet.New(fleet.Config{
		Settings: c.Settings, Log: log, Published: held.Published, Freed: held.Freed, PrefixCacheBytes: c.PrefixBytes, Placed: !alone,
		LogEngineErrors: c.EngineErrors,
	})
	if alone {
		return f, held, nil, nil
	}
	target, dial, err := c.Control.Dial(log)
	if err != nil {
		return nil, nil, nil, err
	}
	return f, held, func(ctx context.Context, m *metrics.Meter, is about) error {
		return placementclient.New(placementclient.Config{
			Target: target, Dial: dial, Lost: c.ControlLost, News: news, Fleet: f, Flow: held, Meter: m,
			Log: log, Name: is.name, Version: is.version, Queries: is.queries, DataPlane: is.plane, Limits: is.limits,
		}).Run(ctx)
	}, nil
}

// within returns the sealer of relay tokens, and the connection to control for ModelMesh clients.
// The connection is nil if the command line configures none.
func within(c options.Options, log *slog.Logger) (*relaytoken.Sealer, *relay.Mesh, error) {
	tokens, err := relay.NewTokens(serve.RelayKey(c.Serve.Own))
	if err != nil {
		return nil, nil, fmt.Errorf("--listen %s: %w", strings.Join(c.Serve.Own, ", "), err)
	}
	if c.MeshTokenFile == "" {
		return tokens, nil, nil
	}
	file, err := engineclient.OpenToken(c.MeshTokenFile, log)
	if err != nil {
		return nil, nil, fmt.Errorf("--mesh-token-file: %w", err)
	}
	control, err := c.Control.Transport(log)
	return tokens, &relay.Mesh{Token: file.Token, Control: control}, err
}
