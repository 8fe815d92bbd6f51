package e2e

import (
	"slices"
	"time"
)

// copyAt identifies a copy: a model at an engine, as the engines' event logs name them.
type copyAt struct{ engine, model string }

// underWay returns the loads that have begun and not ended.
func underWay(events []engineEvent) map[copyAt]bool {
	all := make(map[copyAt]bool)
	for _, e := range events {
		switch e.Event {
		case "load":
			all[copyAt{e.Engine, e.Model}] = true
		case "loaded":
			delete(all, copyAt{e.Engine, e.Model})
		}
	}
	return all
}

// held returns the copies that engines have, according to their event logs.
func held(events []engineEvent) map[copyAt]bool {
	all := make(map[copyAt]bool)
	for _, e := range events {
		switch {
		case e.Event == "loaded" && e.Error == "":
			all[copyAt{e.Engine, e.Model}] = true
		case e.Event == "unload", e.Event == "unloaded": // a load may end between "unload" and "unloaded"
			delete(all, copyAt{e.Engine, e.Model})
		}
	}
	return all
}

// until returns the events before a time.
func until(events []engineEvent, at time.Time) []engineEvent {
	i := slices.IndexFunc(events, func(e engineEvent) bool { return !e.Time.Before(at) })
	if i < 0 {
		return events
	}
	return events[:i]
}

func from(events []engineEvent, at time.Time) []engineEvent { return events[len(until(events, at)):] }

// died adds events for the death of an engine, which loses its loaded models and its loads in
// progress.
func died(events []engineEvent, engine string, at time.Time) []engineEvent {
	before := until(events, at)
	all := slices.Clone(before)
	for c := range underWay(before) {
		if c.engine == engine {
			all = append(all, engineEvent{Time: at, Engine: engine, Event: "loaded", Model: c.model, Error: "the engine died"})
		}
	}
	for c := range held(before) {
		if c.engine == engine {
			all = append(all, engineEvent{Time: at, Engine: engine, Event: "unload", Model: c.model})
		}
	}
	return append(all, events[len(before):]...)
}
