package metrics

import (
	"context"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/control/place"
)

const (
	// defaultDrain is how long the move of models may take if the query does not say.
	defaultDrain = 5 * time.Minute
	// maxDrainQuery is the maximum size of a query.
	maxDrainQuery = 64 << 10
)

// drain serves POST /drain. Only JSON is accepted, which a page in a browser cannot send to another
// site without asking it.
func (m *Meter) drain(w http.ResponseWriter, r *http.Request) {
	t := m.deciding(w)
	if t == nil {
		return
	}
	var q admin.DrainQuery
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxDrainQuery))
	if err == nil {
		err = json.Unmarshal(body, &q)
	}
	if err != nil || media != "application/json" || q.Endpoint == "" {
		http.Error(w, `send JSON with Content-Type: application/json, such as {"endpoint": "10.0.0.7:8000"}`, http.StatusBadRequest)
		return
	}
	result, err := t.drain(r.Context(), q)
	switch {
	case place.ErrUnknownEndpoint(err):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, "control cannot store the drain: "+err.Error(), http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(result) // the client may have disconnected
	}
}

// drain begins or ends to drain an endpoint, and returns the progress.
func (t *term) drain(ctx context.Context, q admin.DrainQuery) (r admin.DrainResult, err error) {
	drainer := place.Drainer{Placer: t.placer}
	switch {
	case q.Undo:
		err = drainer.Undo(q.Endpoint)
	case !q.Progress:
		limit := defaultDrain
		if q.Seconds > 0 {
			limit = time.Duration(q.Seconds * float64(time.Second))
		}
		err = drainer.Drain(q.Endpoint, time.Now().Add(limit))
	}
	if err != nil {
		return r, err
	}
	d, err := drainer.Progress(q.Endpoint)
	if err != nil {
		return r, err
	}
	r = admin.DrainResult{
		Endpoint: q.Endpoint, Drained: d.Drained, Done: d.Done, Moved: d.Moved, Moving: d.Moving, Idle: d.Idle, Unmoved: d.Unmoved,
		Behind: len(d.Behind), Control: t.name,
	}
	for _, u := range d.Migration.Unmoved {
		if u.Copies == 0 {
			r.Lost++
		}
	}
	if d.Done && len(d.Behind) == 0 {
		t.countInFlight(ctx, &r)
	}
	return r, nil
}

// countInFlight asks all extprocs how many requests they have in flight at the endpoint.
func (t *term) countInFlight(ctx context.Context, r *admin.DrainResult) {
	for _, a := range t.board.Ask(ctx, admin.Endpoints, nil).Extprocs {
		var all admin.EndpointsResult
		if a.Error != "" || json.Unmarshal(a.Result, &all) != nil {
			r.Silent = append(r.Silent, a.Extproc)
			continue
		}
		i := slices.IndexFunc(all.Endpoints, func(e admin.Endpoint) bool { return e.Address == r.Endpoint })
		switch {
		case i >= 0:
			r.InFlight += all.Endpoints[i].InFlight // an endpoint in several pools has its whole count in each
		case all.Omitted > 0: // it may be one of those
			r.Silent = append(r.Silent, a.Extproc)
		}
	}
}
