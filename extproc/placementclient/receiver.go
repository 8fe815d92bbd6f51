package placementclient

import (
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/placementproto"
)

// receiver converts the Updates of one stream to placement updates. It returns none until control
// has sent its complete state, then this state, and then changes. Until it is complete, the state
// of the previous stream remains in effect.
type receiver struct {
	complete bool
	all      endpointstate.PlacementUpdate // the state received so far
}

func newReceiver() *receiver { return &receiver{all: newNews()} }

func newNews() endpointstate.PlacementUpdate {
	return endpointstate.PlacementUpdate{
		Copies: make(map[endpointstate.CopyKey]endpointstate.CopyState), Limits: make(map[endpointstate.CopyKey]int),
		Others:   make(map[endpointstate.CopyKey]int64),
		Failures: make(map[objects.ModelKey]string), Registered: make(map[objects.ModelKey]bool),
		Leaving: make(map[string]endpointstate.Leaving), Methods: make(map[string]engine.Methods),
		VModels: make(map[objects.ModelKey]endpointstate.Switch),
	}
}

// receive converts an Update to a placement update. It also returns whether there is one to apply.
func (h *receiver) receive(u *placement.Update, now time.Time) (endpointstate.PlacementUpdate, bool) {
	n := h.all
	if h.complete {
		n = newNews()
	}
	read(u, &n, now)
	if h.complete {
		return n, true
	}
	if h.all = n; !u.GetComplete() {
		return endpointstate.PlacementUpdate{}, false
	}
	h.complete, h.all = true, endpointstate.PlacementUpdate{}
	n.All = true
	if n.Endpoints == nil {
		n.Endpoints = make(map[string]bool)
	}
	return n, true
}

// read adds the contents of an Update to n. It ignores entries without a pool.
func read(u *placement.Update, n *endpointstate.PlacementUpdate, now time.Time) {
	if u.GetEndpoints() != nil {
		n.Endpoints = make(map[string]bool)
		for _, address := range u.GetEndpoints().GetAddresses() {
			n.Endpoints[address] = true
		}
	}
	for _, c := range u.GetCopies() {
		if k, ok := placementproto.CopyOf(c.GetCopy()); ok {
			n.Copies[k] = placementproto.StateOf(c.GetState())
			if n.Limits[k] = int(c.GetLimit()); c.GetLimit() == 0 {
				delete(n.Limits, k)
			}
		}
	}
	if share := u.GetShare(); share != nil {
		n.Share = endpointstate.Share{Index: int(share.GetIndex()), Processes: int(share.GetProcesses())}
	}
	for _, i := range u.GetInFlight() {
		if k, ok := placementproto.CopyOf(i.GetCopy()); ok {
			n.Others[k] = int64(i.GetRequests())
		}
	}
	for _, f := range u.GetFailures() {
		if k, ok := placementproto.ModelOf(f.GetKey()); ok {
			n.Failures[k] = f.GetReason()
		}
	}
	for _, r := range u.GetRuntimes() {
		n.Methods[r.GetEndpoint()] = engine.MethodsOfLines(r.GetMethods())
	}
	for _, l := range u.GetLeaving() {
		n.Leaving[l.GetEndpoint()] = placementproto.LeavingOf(l, now)
	}
	for _, v := range u.GetVmodels() {
		if k, ok := placementproto.ModelOf(v.GetKey()); ok {
			n.VModels[k] = endpointstate.Switch{Active: v.GetActive(), Canary: v.GetCanary(), Percent: int(v.GetPercent())}
		}
	}
	for _, r := range u.GetRegistered() {
		if k, ok := placementproto.ModelOf(r.GetKey()); ok {
			n.Registered[k] = !r.GetGone()
		}
	}
}

// onlyOfOthers reports whether an Update contains only reports of other processes, limits of
// routes, answers to questions, and queries.
func onlyOfOthers(u *placement.Update) bool {
	others := len(u.GetBacklogs()) + len(u.GetWaiting()) + len(u.GetLessons()) + len(u.GetResponses()) + len(u.GetQueries())
	return (others > 0 || u.GetAnswer() > 0 || u.GetLimits() != nil) &&
		u.GetEndpoints() == nil && u.GetShare() == nil && !u.GetComplete() &&
		len(u.GetCopies())+len(u.GetFailures())+len(u.GetInFlight())+len(u.GetRegistered())+len(u.GetVmodels())+len(u.GetLeaving())+
			len(u.GetRuntimes()) == 0
}

// backlogsOf returns the work of other processes in an Update. It stores the result in dst if that
// is large enough.
func backlogsOf(told []*placement.Backlog, now time.Time, dst []endpointstate.Backlog) []endpointstate.Backlog {
	for _, b := range told {
		dst = append(dst, endpointstate.Backlog{
			Endpoint: b.GetEndpoint(),
			Requests: int64(b.GetRequests()),                                                 //nolint:gosec // a sum over extprocs
			Through:  now.Add(time.Duration(b.GetPrefillUs()) * time.Microsecond).UnixNano(), //nolint:gosec // control bounds it
			Beside:   int64(b.GetBesidePs()),                                                 //nolint:gosec // a sum over extprocs
			Urgency:  int64(b.GetUrgency()),                                                  //nolint:gosec // a sum over extprocs
			Tokens:   int64(b.GetTokens()),                                                   //nolint:gosec // a sum over extprocs
		})
	}
	return dst
}
