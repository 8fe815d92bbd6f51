package command

import (
	"context"
	"os"
	"strconv"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/endpoints"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/options"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/query"
	"github.com/headgate/headgate/internal/version"
)

// about describes this process, and answers queries about its state.
type about struct {
	name, version string
	queries       query.Handlers
	// plane returns which requests reach this process.
	plane  func() *placement.DataPlane
	limits *limits.Book // nil without control
}

func newAbout(c options.Options) about {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	plane := func() *placement.DataPlane {
		is := &placement.DataPlane{Standalone: c.Serve.Endpoints.Standalone(), Picker: c.Serve.Port >= 0}
		if c.Pool.Name != "" {
			is.Pool = c.Pool.String()
		}
		return is
	}
	return about{name: host + "/" + strconv.Itoa(os.Getpid()), version: version.Read().Program, queries: query.Handlers{}, plane: plane}
}

// ask answers a query over HTTP.
func (a about) ask(ctx context.Context, kind string, body []byte) (admin.Answers, error) {
	result, err := a.queries.Answer(ctx, kind, body)
	is := admin.Answer{Extproc: a.name, Version: a.version, Result: result}
	if err != nil {
		is.Error = err.Error()
	}
	return admin.Answers{Extprocs: []admin.Answer{is}}, nil
}

// endpointsOf returns the state of all endpoints, and the faults of object files.
func endpointsOf(f *fleet.Fleet, held *flow.Flow, rejected *rejections) admin.EndpointsResult {
	now := f.Now()
	in := fleet.Read(f, func(s *endpointstate.State) endpoints.Fleet {
		return endpoints.Fleet{Endpoints: s.Endpoints(now), Known: s.Times.Known(), FailOpen: s.FailOpen(), Settings: s.Settings}
	})
	in.View, in.Held = f.View(), make(map[objects.Name][]admin.Held)
	for _, h := range held.Held() {
		in.Held[h.Pool] = append(in.Held[h.Pool], admin.Held{
			Band: h.Band, Reason: h.Reason.String(), Requests: h.Requests, OldestSeconds: max(0, now.Sub(h.Since).Seconds()),
		})
	}
	r := endpoints.Of(in, now)
	r.ControlLost = held.Lost()
	rejected.report(&r)
	return r
}
