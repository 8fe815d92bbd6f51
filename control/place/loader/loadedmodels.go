package loader

// loadedModels are the models that the engine has loaded, as far as known, and that control has not
// unloaded since. The value is true if the engine's last list contained the model, and false if the
// model was loaded after that list. The owner's mutex guards it.
type loadedModels map[string]bool

// note records that the engine has loaded a model, or, if loaded is false, that the engine
// certainly no longer has it.
func (h loadedModels) note(id string, loaded bool) {
	if !loaded {
		delete(h, id)
	} else if !h[id] {
		h[id] = false
	}
}

// compare compares the engine's new list (there) with the models that the engine had when the list
// was requested (before), and removes missing models from h. It reports whether the engine has
// restarted: models are missing, and no model of the previous list remains. If the previous list
// was empty, none of the models loaded since may remain.
func (h loadedModels) compare(there map[string]bool, before loadedModels) (anew bool) {
	var lost, listed, left, listedLeft bool // whether models are missing, were listed, remain, and both were listed and remain
	for id, was := range before {
		_, stays := h[id] // false if the model was unloaded meanwhile
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
