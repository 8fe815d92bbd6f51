package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/headgate/headgate/control/attach/controller"
	"github.com/headgate/headgate/control/broadcast"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/election"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/serve"
	"github.com/headgate/headgate/internal/objects"
)

// Alone is a control that reads objects from a folder. There is no other control, so it always
// leads.
type Alone struct {
	StateFile string
	Log       *slog.Logger
}

// Credentials adds nothing, since flags name the files of credentials.
func (Alone) Credentials(context.Context, *serve.Config) error { return nil }

// Lead runs one term, until ctx ends.
func (Alone) Lead(ctx context.Context, term election.Term) error { return term(ctx, nil) }

// Leader returns nil: there is no other control.
func (Alone) Leader() func(context.Context) (netip.Addr, error) { return nil }

// Open opens the state file. The StatusWriter writes nothing, since objects in files have no
// status.
func (a Alone) Open(context.Context, func() bool) (store.Memory, StatusWriter, error) {
	file, err := store.Open(a.StateFile, a.Log)
	if err != nil {
		return nil, nil, fmt.Errorf("--state-file: %w", err)
	}
	return file, noStatus{}, nil
}

// KeepGateways reports the state of Gateways until ctx ends.
func (Alone) KeepGateways(ctx context.Context, _ func() bool, gateways *broadcast.Value[conditions.Input],
	report func(conditions.Input),
) error {
	gateways.Follow(ctx, func(in *conditions.Input) { report(*in) })
	return nil
}

// Announce does nothing: extprocs have the address of the only control.
func (Alone) Announce(context.Context, func() bool) {}

// ServeEnvoys serves Envoys at a socket until ctx ends.
func (Alone) ServeEnvoys(ctx context.Context, s controller.Service) error { return s.Run(ctx) }

// noStatus is a StatusWriter that writes nothing.
type noStatus struct{}

func (noStatus) SetWorld(*objects.World)         {}
func (noStatus) SetGateways(conditions.Input)    {}
func (noStatus) SetObserved(conditions.Observed) {}
