package decide

// Pod is what is known of an endpoint's pod, beside whether it is being deleted. The zero Pod is
// that of an endpoint that serves.
type Pod struct {
	// Unready says that no requests are sent there: what it has is of no use, and nothing is loaded
	// there but on trial. Who finds no place elsewhere waits for it.
	Unready bool
	// OnTrial says that nothing keeps it from being ready but that nobody has said yet that models
	// load there.
	OnTrial bool
	// Outgoing says that another version is likely to replace it soon: nothing is loaded there that
	// could be loaded elsewhere.
	Outgoing bool
}

// SetPod says what an endpoint's pod is like.
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
