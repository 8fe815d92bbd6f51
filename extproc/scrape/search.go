package scrape

import "time"

// First and longest pause in which only the first page of an unrecognised engine is read, before
// the other pages are tried again. The pages of an engine do not change while it lives, except that
// its first answers may come too early.
const (
	minPause = time.Second
	maxPause = time.Minute
)

// search selects the page to read among those where an engine may have its metrics. It keeps a page
// with a load. Until one is found it tries each page in turn. After that it reads only the first
// page, to detect that the engine is there, and tries the others ever less often, or at once when
// an answer changes. It is pure; the zero search has no pages.
type search struct {
	pages int
	at    int  // the page to ask for
	found bool // a page had a load
	// pause is the length of the last pause, until is its end; zero while the pages take turns.
	pause time.Duration
	until time.Time
	// first and listed are the last answers of the first page and of the list of models.
	first, listed string
}

// next returns the page to read now.
func (s *search) next(now time.Time) int {
	if !s.until.IsZero() && !now.Before(s.until) {
		s.until = time.Time{}
		s.at = 1 // the first page was read during the pause
	}
	return s.at
}

// record records the result for the page of [search.next]: whether it had a load, whether it was
// answered, and a word that identifies the answer, empty for none. It returns whether this ended a
// round in which no page had a load.
func (s *search) record(load, answered bool, answer string, now time.Time) (ended bool) {
	switch {
	case load:
		s.found, s.pause, s.until = true, 0, time.Time{}
		return false
	case s.found && !answered: // the engine may be too busy to answer
		return false
	case s.found: // the page is gone: perhaps another engine
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

// lists records a word that identifies the engine's list of models.
func (s *search) lists(models string) { s.differs(&s.listed, models) }

// differs restarts the search when an answer has changed. An empty answer does not count.
func (s *search) differs(was *string, is string) {
	if is == "" {
		return
	}
	if *was != "" && *was != is && !s.found {
		s.pause, s.until = 0, time.Time{}
	}
	*was = is
}
