package scrape

import "time"

// The shortest and the longest pause in which only the first page of an unrecognised engine is
// read, before the other pages are tried again. An engine's pages do not change while it runs,
// except that its first answers may come too early.
const (
	minPause = time.Second
	maxPause = time.Minute
)

// search selects the page to read among those where an engine may have its metrics. It stays with a
// page that has a load. Until it finds one, it tries each page once. After that it reads only the
// first page, to detect that the engine is there. It tries the other pages less and less often, or
// immediately when an answer changes. It is pure; the zero search has no pages.
type search struct {
	pages int
	at    int  // index of the page to read
	found bool // whether a page had a load
	// pause is the length of the last pause, and until is its end, which is zero while all pages
	// are tried.
	pause time.Duration
	until time.Time
	// first and listed identify the last answers for the first page and for the list of models.
	first, listed string
}

// next returns the index of the page to read now.
func (s *search) next(now time.Time) int {
	if !s.until.IsZero() && !now.Before(s.until) {
		s.until = time.Time{}
		s.at = 1 // continues with the second page: the first was read during the pause
	}
	return s.at
}

// record records the result for the page that [search.next] returned: whether the page had a load,
// whether there was an answer, and a word that identifies the answer (empty for none). It returns
// true at the end of a round over all pages in which no page had a load.
func (s *search) record(load, answered bool, answer string, now time.Time) (ended bool) {
	switch {
	case load:
		s.found, s.pause, s.until = true, 0, time.Time{}
		return false
	case s.found && !answered: // the engine may be too busy to answer
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

// lists is called with a word that identifies the engine's list of models.
func (s *search) lists(models string) { s.differs(&s.listed, models) }

// differs compares an answer with the previous one, and restarts the search if the answer has
// changed. It ignores an empty answer.
func (s *search) differs(was *string, is string) {
	if is == "" {
		return
	}
	if *was != "" && *was != is && !s.found {
		s.pause, s.until = 0, time.Time{}
	}
	*was = is
}
