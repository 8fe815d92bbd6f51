package decide

import "slices"

// Change is what followers of placement receive. [State.Changes] fills in all fields but
// Registered, which package place fills in.
type Change struct {
	Copies map[CopyKey]CopyChange
	// Gone are copies that, as far as is known, their engines no longer have, and of which no leak
	// remains. They are in no particular order.
	Gone []CopyKey
	// Failures are the reasons why models cannot be loaded for now. An empty reason means that the
	// model may be requested again.
	Failures map[Key]Reason
	// Leaving are the reasons why endpoints are about to end. The zero Leaving means that the
	// endpoint stays, or that it has ended.
	Leaving map[string]Leaving
	// Trials is true if the set of endpoints on trial changed, or the progress of a trial.
	Trials bool
	// VModels are the targets of VModels. They include deleted VModels, and may include VModels
	// with an unchanged target.
	VModels map[Key]Switch
	// Unnamed are models that no VModel names any more, in no particular order.
	Unnamed []Key
	// Registered are models that were registered (true) or removed (false).
	Registered map[Key]bool
	// Endpoints are the addresses of all known endpoints, including those that are down, sorted;
	// nil if that set did not change.
	Endpoints []string
}

// CopyChange is the state of a copy, as sent to followers. The zero CopyChange means that the copy
// is gone.
type CopyChange struct {
	State CopyState
	// Limit is the maximum number of concurrent requests of the copy; 0 means no limit.
	Limit int
	// Earlier is true if an earlier process started the load. That process may have published the
	// copy as loaded; this process does not know whether the copy is loaded.
	Earlier bool
}

// Changes returns the changes since its last call.
func (s *State) Changes() Change {
	change := Change{
		Copies: make(map[CopyKey]CopyChange, len(s.news.copies)), Failures: make(map[Key]Reason, len(s.news.models)),
		Leaving: make(map[string]Leaving, len(s.news.leaving)), Trials: s.news.trials, VModels: make(map[Key]Switch, len(s.news.vmodels)),
	}
	for key := range s.news.vmodels {
		change.VModels[key] = Switch{}
		if v := s.vmodels[key]; v != nil {
			change.VModels[key] = v.told
		}
	}
	for key := range s.news.unnamed {
		if len(s.named[key]) == 0 {
			change.Unnamed = append(change.Unnamed, key)
		}
	}
	for key := range s.news.copies {
		c, _ := s.Copy(key)
		change.Copies[key] = CopyChange{c.State, c.Limit, c.interrupted}
	}
	for key := range s.news.records {
		if !mayBeAt(s, key) {
			change.Gone = append(change.Gone, key)
		}
	}
	for key := range s.news.models {
		var why Reason // empty for a deleted model
		if m := s.models[key]; m != nil {
			why = m.failed
		}
		change.Failures[key] = why
	}
	for address := range s.news.leaving {
		var why Leaving
		if e := s.endpoints[address]; e != nil {
			why = e.Leaving
		}
		change.Leaving[address] = why
	}
	if s.news.endpoints {
		change.Endpoints = []string{}
		for address, e := range s.endpoints {
			if e.state != unknown {
				change.Endpoints = append(change.Endpoints, address)
			}
		}
		slices.Sort(change.Endpoints)
	}
	s.news = newNews()
	return change
}
