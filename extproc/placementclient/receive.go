package placementclient

import (
	"strings"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// hearing turns the Updates of one stream into placement updates: none until control has sent
// everything, then all of it, then changes. The state of the previous stream stays in force until
// then.
type hearing struct {
	complete bool
	all      endpointstate.PlacementUpdate // so far
}

func newHearing() *hearing { return &hearing{all: newNews()} }

func newNews() endpointstate.PlacementUpdate {
	return endpointstate.PlacementUpdate{
		Copies: make(map[endpointstate.CopyKey]endpointstate.CopyState), Limits: make(map[endpointstate.CopyKey]int),
		Others:   make(map[endpointstate.CopyKey]int64),
		Failures: make(map[objects.ModelKey]string), Registered: make(map[objects.ModelKey]bool),
		Leaving: make(map[string]endpointstate.Leaving), Methods: make(map[string]engine.Methods),
		VModels: make(map[objects.ModelKey]endpointstate.Switch),
	}
}

// hear returns the placement update of an Update, and whether there is one to apply.
func (h *hearing) hear(u *placement.Update, now time.Time) (endpointstate.PlacementUpdate, bool) {
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

var words = map[placement.Copy_State]endpointstate.CopyState{
	placement.Copy_LOADING: endpointstate.Loading, placement.Copy_LOADED: endpointstate.Loaded,
	placement.Copy_UNLOADING: endpointstate.Unloading,
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
		if k, ok := copyKey(c.GetCopy()); ok {
			n.Copies[k] = words[c.GetState()]
			if n.Limits[k] = int(c.GetLimit()); c.GetLimit() == 0 {
				delete(n.Limits, k)
			}
		}
	}
	if share := u.GetShare(); share != nil {
		n.Share = endpointstate.Share{Index: int(share.GetIndex()), Processes: int(share.GetProcesses())}
	}
	for _, i := range u.GetInFlight() {
		if k, ok := copyKey(i.GetCopy()); ok {
			n.Others[k] = int64(i.GetRequests())
		}
	}
	for _, f := range u.GetFailures() {
		if k, ok := modelKey(f.GetKey()); ok {
			n.Failures[k] = f.GetReason()
		}
	}
	for _, r := range u.GetRuntimes() {
		n.Methods[r.GetEndpoint()] = engine.MethodsOfLines(r.GetMethods())
	}
	for _, l := range u.GetLeaving() {
		why := endpointstate.Leaving{Terminating: l.GetTerminating()}
		if l.MigratesMs != nil {
			why.Migrates = now.Add(time.Duration(l.GetMigratesMs()) * time.Millisecond) //nolint:gosec // a wrong one is soon over
		}
		if l.StoppingMs != nil {
			why.Stopping = now.Add(-time.Duration(l.GetStoppingMs()) * time.Millisecond)
		}
		n.Leaving[l.GetEndpoint()] = why
	}
	for _, v := range u.GetVmodels() {
		if k, ok := modelKey(v.GetKey()); ok {
			n.VModels[k] = endpointstate.Switch{Active: v.GetActive(), Canary: v.GetCanary(), Percent: int(v.GetPercent())}
		}
	}
	for _, r := range u.GetRegistered() {
		if k, ok := modelKey(r.GetKey()); ok {
			n.Registered[k] = !r.GetGone()
		}
	}
}

// onlyOfOthers reports whether an Update has nothing but reports of other processes and answers.
func onlyOfOthers(u *placement.Update) bool {
	return (len(u.GetBacklogs())+len(u.GetLessons())+len(u.GetResponses()) > 0 || u.GetAnswer() > 0) && u.GetEndpoints() == nil &&
		u.GetShare() == nil && !u.GetComplete() &&
		len(u.GetCopies())+len(u.GetFailures())+len(u.GetInFlight())+len(u.GetRegistered())+len(u.GetVmodels())+len(u.GetLeaving())+
			len(u.GetRuntimes()) == 0
}

// backlogsOf returns the work of other processes in an Update, in dst if that is large enough.
func backlogsOf(told []*placement.Backlog, now time.Time, dst []endpointstate.Backlog) []endpointstate.Backlog {
	for _, b := range told {
		dst = append(dst, endpointstate.Backlog{
			Endpoint: b.GetEndpoint(), Requests: int64(b.GetRequests()),
			Through: now.Add(time.Duration(b.GetPrefillUs()) * time.Microsecond).UnixNano(),
			//nolint:gosec // control bounds it
			Beside: int64(b.GetBesidePs()), Urgency: int64(b.GetUrgency()), Tokens: int64(b.GetTokens()),
			//nolint:gosec // sums of what extprocs have
		})
	}
	return dst
}

func modelKey(k *placement.ModelKey) (objects.ModelKey, bool) {
	namespace, name, ok := strings.Cut(k.GetPool(), "/")
	return objects.ModelKey{Pool: objects.Name{Namespace: namespace, Name: name}, ID: k.GetModel()}, ok && k.GetModel() != ""
}

func copyKey(k *placement.CopyKey) (endpointstate.CopyKey, bool) {
	key, ok := modelKey(k.GetKey())
	return endpointstate.CopyKey{ModelKey: key, Endpoint: k.GetEndpoint()}, ok
}
