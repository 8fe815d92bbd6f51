package decide

// Pod is the state of an endpoint's pod, apart from its deletion. The zero Pod serves requests.
type Pod struct {
	// Unready: the pod gets no requests. Its copies are not usable, and no model is loaded there
	// unless the endpoint is on trial. A model that has no other place waits for the pod.
	Unready bool
	// OnTrial: the pod is ready except that it has not been shown that models load there.
	OnTrial bool
	// Outgoing: a newer version will probably replace the pod soon. A model is loaded there only if
	// it cannot be loaded elsewhere.
	Outgoing bool
}

// SetPod sets the state of an endpoint's pod. It returns true if the endpoint must be scraped now,
// because scrapes failed before its pod became ready. Until that scrape, models that have no other
// place wait, since it is unknown whether they can be loaded there.
func (s *State) SetPod(address string, to Pod) (scrape bool) {
	e := s.endpoints[address]
	if e == nil || e.pod == to {
		return false
	}
	was := e.pod
	e.pod = to
	e.outdated = !to.Unready && (e.outdated || was.Unready && e.state > up)
	if was.OnTrial != to.OnTrial {
		setTrial(s, e, to.OnTrial)
	}
	if was.Unready == to.Unready && was.OnTrial == to.OnTrial {
		return false
	}
	if to.Unready {
		dropQueued(s, e)
	}
	s.noteEndpoint(endpointChanged, e)
	return e.outdated
}
