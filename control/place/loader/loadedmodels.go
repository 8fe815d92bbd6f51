package loader

// loadedModels are the models that an engine is known to have loaded and that control has not
// unloaded: true for those in its last list, false for those loaded since. It is guarded by the
// mutex of its owner.
type loadedModels map[string]bool

// note records that the engine has loaded a model, or certainly does not have it any more.
func (h loadedModels) note(id string, loaded bool) {
	if !loaded {
		delete(h, id)
	} else if !h[id] {
		h[id] = false
	}
}

// compare removes models that a list lacks although the engine had them when the list was
// requested. It reports whether the engine has restarted: it has no model of the list before,
// whatever was loaded since; or, if that list was empty, none of those loaded since.
func (h loadedModels) compare(there map[string]bool, before loadedModels) (anew bool) {
	var lost, listed, left, listedLeft bool // some are gone; some were listed; some remain, and some listed ones
	for id, was := range before {
		_, stays := h[id] // it was not unloaded meanwhile
		listed = listed || was
		switch {
		case there[id]:
			left, listedLeft = true, listedLeft || was
		case stays:
			lost = true
			delete(h, id)
		}
	}
	if listed {
		left = listedLeft
	}
	return lost && !left
}
