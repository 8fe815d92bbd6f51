package accesslog

import "github.com/headgate/headgate/extproc/outcome"

// MaxEntries is the maximum number of records in a message.
const MaxEntries = maxEntries

// Entries are the records of a message.
type Entries = entries

// Pass passes the records to the callbacks of a Server.
func (e *entries) Pass(observe func(outcome.Outcome), goesOn func(outcome.Progress)) {
	e.pass(observe, goesOn)
}

// Cap returns for how many entries there is memory.
func (e *entries) Cap() int { return cap(e.read) }
