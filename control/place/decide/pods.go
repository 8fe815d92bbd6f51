package decide

// Pod is the state of an endpoint's pod, apart from its deletion. The zero Pod serves requests.
type Pod struct {
	// Unready: the pod gets no requests. Its copies are not usable, and nothing is loaded there
	// unless it is on trial. A model without another place waits for it.
	Unready bool
	// OnTrial: the pod is ready but for the proof that models load there.
	OnTrial bool
	// Outgoing: a newer version will probably replace the pod soon, so nothing is loaded there that
	// can be loaded elsewhere.
	Outgoing bool
}

// SetPod sets the state of an endpoint's pod.
func (s *State) SetPod(address string, to Pod) {
	e := s.endpoints[address]
	if e == nil || e.pod == to {
		return
	}
	was := e.pod
	e.pod = to
	if was.OnTrial != to.OnTrial {
		setTrial(s, e, to.OnTrial)
	}
	if was.Unready == to.Unready && was.OnTrial == to.OnTrial {
		return
	}
	if to.Unready {
		dropQueued(s, e)
	}
	s.noteEndpoint(endpointChanged, e)
}
