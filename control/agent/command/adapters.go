package command

import (
	"context"
	"crypto/tls"
	"sync"

	"github.com/headgate/headgate/control/agent/adapters"
	"github.com/headgate/headgate/control/agent/relay"
	"github.com/headgate/headgate/control/agent/storage"
)

// adapterFiles are the files of LoRA adapters: [adapters.Files].
type adapterFiles struct{ *stored }

// Fetch returns the path of an adapter's folder.
func (f adapterFiles) Fetch(ctx context.Context, name string, source storage.Source) (string, error) {
	local, err := f.files.Fetch(ctx, name, source)
	return local.Path, err
}

// Names returns the adapters that have files.
func (f adapterFiles) Names() []string { return f.Models() }

// serveAdapters serves the calls for LoRA adapters until the function that it returns is called.
func (a *agent) serveAdapters(wait *sync.WaitGroup) (end func(), err error) {
	s, err := adapters.New(adapters.Config{
		Kind: a.kind, Engine: a.at, Files: adapterFiles{a.stored}, Resolve: a.stored.resolve, Token: a.token, Key: a.key, Log: a.log,
	})
	if err != nil {
		return nil, err
	}
	var secure *tls.Config
	if a.certPath != "" {
		if secure, err = relay.TLS(a.certPath, a.log); err != nil {
			return nil, err
		}
	}
	stopServer, err := a.serveHTTP("management", a.management, secure, s, endTimeout)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	wait.Go(func() { s.Run(ctx) })
	return func() { stopServer(); cancel() }, nil
}
