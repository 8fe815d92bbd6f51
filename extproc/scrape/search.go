package scrape

import "time"

// How long an engine that was not recognised is asked for its first page alone, before the others
// have their turn again: at first, and at most. What it serves there does not change for as long as
// it lives, but for what its first answers were too early.
const (
	minPause = time.Second
	maxPause = time.Minute
)

// search says which of the pages where an engine may have its metrics is to be asked for. A page
// that tells a load is kept. While none has, each has its turn; then the first is asked for alone,
// which tells that the engine is there, and the others ever more seldom, until the engine answers
// otherwise than before. It is pure; the zero search is of no pages.
type search struct {
	pages int
	at    int  // the page to ask for
	found bool // a page has told a load
	// pause is how long the last pause was, until is its end; zero while the pages have their turns.
	pause time.Duration
	until time.Time
	// first and listed are what the first page and the list of models answered last.
	first, listed string
}

// next returns the page to ask for at a moment.
func (s *search) next(now time.Time) int {
	if !s.until.IsZero() && !now.Before(s.until) {
		s.until = time.Time{}
		s.at = 1 // the first was asked for all the time
	}
	return s.at
}

// told says what came of asking for the page of [search.next]: whether it told a load, whether it
// was answered at all, and the answer in a word that is the same for answers alike, empty for none.
// It returns whether that ended a round in which no page told anything.
func (s *search) told(load, answered bool, answer string, now time.Time) (ended bool) {
	switch {
	case load:
		s.found, s.pause, s.until = true, 0, time.Time{}
		return false
	case s.found && !answered: // it may be too busy to answer: it is not moved by that
		return false
	case s.found: // the page is gone: this may be another engine
		*s = search{pages: s.pages}
		return false
	}
	if s.at == 0 {
		s.differs(&s.first, answer)
	}
	if !s.until.IsZero() {
		return false
	}
	s.at = (s.at + 1) % s.pages
	if s.at > 0 {
		return false
	}
	if s.pages > 1 {
		s.pause = min(max(2*s.pause, minPause), maxPause)
		s.until = now.Add(s.pause)
	}
	return true
}

// lists says what the engine's list of models is, in a word that is the same for lists alike.
func (s *search) lists(models string) { s.differs(&s.listed, models) }

// differs begins anew where an answer is another than the one before. An empty one is none.
func (s *search) differs(was *string, is string) {
	if is == "" {
		return
	}
	if *was != "" && *was != is && !s.found {
		s.pause, s.until = 0, time.Time{}
	}
	*was = is
}
