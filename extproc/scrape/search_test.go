package scrape

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// asked returns the indexes of the pages that the search reads in n scrapes, one every 200 ms. All
// answers are the same, and none has a load.
func (s *search) asked(now *time.Time, n int, answer string) string {
	var pages strings.Builder
	for range n {
		fmt.Fprint(&pages, s.next(*now))
		s.record(false, true, answer, *now)
		*now = now.Add(200 * time.Millisecond)
	}
	return pages.String()
}

func TestUselessPagesAreReadRarely(t *testing.T) {
	s := search{pages: 3}
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := began
	// The search reads all pages once. Then there are pauses of 1, 2 and 4 seconds in which it
	// reads only the first page.
	if got, want := s.asked(&now, 46, "404"), "012"+"0000"+"12"+"000000000"+"12"+"0000000000000000000"+"12"+"00000"; got != want {
		t.Errorf("it reads\n%s, want\n%s", got, want)
	}
	// A pause lasts at most a minute.
	hour := s.asked(&now, 5*3600, "404")
	if n := strings.Count(hour, "12"); n < 59 || n > 66 {
		t.Errorf("in an hour it reads the other pages %d times, want about 60", n)
	}
	if last := hour[len(hour)-400:]; !strings.Contains(last, "12") {
		t.Errorf("in the last 80 seconds it does not read the other pages")
	}
}

func TestSearchRestartsWhenAnswersChange(t *testing.T) {
	for name, c := range map[string]struct {
		pages int
		tell  func(s *search, now time.Time) // change to apply after minutes without a load
		then  string                         // answer for the first page after that change
		want  string                         // indexes of the pages in the next scrapes
	}{
		"nothing has changed":        {3, func(*search, time.Time) {}, "404", "000000"},
		"the first page has changed": {3, func(s *search, now time.Time) { s.record(false, true, "a page", now) }, "a page", "120000"},
		"the first page is the same": {3, func(s *search, now time.Time) { s.record(false, true, "404", now) }, "404", "000000"},
		"no answer is no change":     {3, func(s *search, now time.Time) { s.record(false, false, "", now) }, "404", "000000"},
		"the models are the same":    {3, func(s *search, _ time.Time) { s.lists("[llama]") }, "404", "000000"},
		"the models have changed":    {3, func(s *search, _ time.Time) { s.lists("[llama sql]") }, "404", "012000"},
		"a page had a load":          {3, func(s *search, now time.Time) { s.record(true, true, "a page", now) }, "404", "001200"},
		"there is one page":          {1, func(*search, time.Time) {}, "404", "000000"},
	} {
		s := search{pages: c.pages}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		s.lists("[llama]")
		s.asked(&now, 640, "404")
		if s.next(now) != 0 {
			t.Fatalf("%s: the test does not begin in a pause", name)
		}
		c.tell(&s, now)
		if got := s.asked(&now, 6, c.then); got != c.want {
			t.Errorf("%s: it reads %s, want %s", name, got, c.want)
		}
	}
}

// A page that had a load is kept while the engine is too busy to answer. If the page is gone, the
// search starts again, because there may be another engine.
func TestPageWithALoadIsKept(t *testing.T) {
	s := search{pages: 2}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.asked(&now, 1, "404")
	if at := s.next(now); at != 1 {
		t.Fatalf("it reads %d", at)
	}
	s.record(true, true, "a page", now)
	for range 10 {
		if s.record(false, false, "", now); s.next(now) != 1 {
			t.Fatal("silence moves it to another page")
		}
	}
	if got, want := s.asked(&now, 46, "404"), "1"+"01"+"0000"+"1"+"000000000"+"1"+"0000000000000000000"+"1"+"00000000"; got != want {
		t.Errorf("when the page is gone it reads\n%s, want\n%s", got, want)
	}
}

// The end of each round over all pages without a load is reported once, so that it can be logged.
func TestEndOfARoundIsReported(t *testing.T) {
	for pages, want := range map[int]string{1: "true true true", 3: "false false true"} {
		s := search{pages: pages}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var got []string
		for range 3 {
			s.next(now)
			got = append(got, strconv.FormatBool(s.record(false, true, "404", now)))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("with %d pages: %v, want %s", pages, got, want)
		}
	}
}
