package decide

import "slices"

// Change is what those are told who follow placement. [State.Changes] has all but Registered, which
// package place knows.
type Change struct {
	Copies map[CopyKey]CopyChange
	// Gone are copies of which, as far as is known, their engines have nothing any more: neither
	// the copy nor a leak. They are in no order.
	Gone []CopyKey
	// Failures say why a model cannot be loaded for now; empty: it may be asked for.
	Failures map[Key]Reason
	// Leaving says why endpoints are about to end; the zero Leaving: they stay, or are gone.
	Leaving map[string]Leaving
	// Trials says that it changed which endpoints are on trial, or how one does.
	Trials bool
	// VModels are where requests for them go; of one that is no more, or that anything else is
	// known of, perhaps as before.
	VModels map[Key]Switch
	// Unnamed are the models that no VModel names any more, in no order.
	Unnamed []Key
	// Registered models came, or with false went.
	Registered map[Key]bool
	// Endpoints are those that were seen, those that are down too, in order: where that changed;
	// else nil.
	Endpoints []string
}

// CopyChange is what followers need of a copy. There false says that it is gone.
type CopyChange struct {
	There bool
	State CopyState
	// Limit is how many requests it takes at once; 0: as many as come.
	Limit int
	// Earlier says that an earlier process told the engine to load it, and may have published it as
	// loaded, though this one does not know whether it is.
	Earlier bool
}

// Changes returns what changed since the last call.
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
		c, there := s.Copy(key)
		change.Copies[key] = CopyChange{there, c.State, c.Limit, c.cut}
	}
	for key := range s.news.records {
		if !mayBeAt(s, key) {
			change.Gone = append(change.Gone, key)
		}
	}
	for key := range s.news.models {
		var why Reason // of one that is gone, none
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
