package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/headgate/headgate/extproc/errand"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/belief"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/inner"
	"github.com/headgate/headgate/extproc/meter"
	"github.com/headgate/headgate/extproc/serve"
	"github.com/headgate/headgate/extproc/talk"
	"github.com/headgate/headgate/internal/reach"
)

// believe returns the fleet. Where the command line names control it returns, too, what holds the requests that wait for
// models, and what talks with control until its context ends.
func believe(c config, log *slog.Logger) (*fleet.Fleet, *flow.Flow, func(context.Context, *meter.Meter) error, error) {
	if c.control.Address == "" {
		return fleet.New(fleet.Config{Settings: c.settings, Log: log, PrefixCacheBytes: c.prefixBytes}), nil, nil, nil
	}
	target, dial, err := c.control.Dial(log)
	if err != nil {
		return nil, nil, nil, err
	}
	var f *fleet.Fleet
	news := talk.NewNews()
	held := flow.New(flow.Config{
		View: func() *belief.View { return f.View() }, MaxHeld: c.maxHeld, MaxBytes: c.maxHeldMiB << 20, Changed: news.Changed,
	})
	f = fleet.New(fleet.Config{
		Settings: c.settings, Log: log, Published: held.Published, Freed: held.Freed, PrefixCacheBytes: c.prefixBytes, Placed: true,
	})
	return f, held, func(ctx context.Context, m *meter.Meter) error {
		return talk.New(talk.Config{Target: target, Dial: dial, News: news, Fleet: f, Flow: held, Meter: m, Log: log}).Run(ctx)
	}, nil
}

// within is what the inner server has: what it is told by, and the way to control for clients of ModelMesh, nil where the command line opens none.
func within(c config, log *slog.Logger) (*errand.Sealer, *inner.Mesh, error) {
	errands, err := inner.NewErrands(serve.InnerKey(c.serve.Own))
	if err != nil {
		return nil, nil, fmt.Errorf("--listen %s: %w", strings.Join(c.serve.Own, ", "), err)
	}
	if c.meshTokenFile == "" {
		return errands, nil, nil
	}
	file, err := reach.OpenToken(c.meshTokenFile, log)
	if err != nil {
		return nil, nil, fmt.Errorf("--mesh-token-file: %w", err)
	}
	control, err := c.control.Transport(log)
	return errands, &inner.Mesh{Token: file.Token, Control: control}, err
}
