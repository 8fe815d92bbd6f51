package loader

// held are the models that an engine is known to have loaded, and that nobody has told it to
// unload: true of those that its last list had, false of those that were loaded since. It is
// guarded by the mutex of whoever has it.
type held map[string]bool

// note notes that the engine has loaded a model, or has it no more, as is sure.
func (h held) note(id string, loaded bool) {
	if !loaded {
		delete(h, id)
	} else if !h[id] {
		h[id] = false
	}
}

// compare drops what a list lacks of what the engine had before it was asked for that, and says
// whether the engine has begun anew: one has that has nothing of what the list before had, whatever
// was loaded since; or where that was nothing, nothing of what was loaded since.
func (h held) compare(there map[string]bool, before held) (anew bool) {
	var lost, listed, left, listedLeft bool // some are gone; some were listed; some are there, and some of the listed
	for id, was := range before {
		_, stays := h[id] // nobody has unloaded it meanwhile
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
