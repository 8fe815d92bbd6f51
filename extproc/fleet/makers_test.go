package fleet_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/headgate/headgate/extproc/fleet"
)

// The newest responses are shared first. If there are too many, only the newest are shared.
func TestLatestResponsesAreSharedFirst(t *testing.T) {
	f := fleet.New(fleet.Config{Placed: true})
	maker := fleet.Maker{Address: a}
	const most = 16384
	for n := range most + 3 {
		f.Made(strconv.Itoa(n), maker)
	}
	told := func(n int) []string {
		ids := f.TakeMade(n)[maker]
		slices.Sort(ids)
		return ids
	}
	if got, want := told(2), []string{strconv.Itoa(most + 1), strconv.Itoa(most + 2)}; !slices.Equal(got, want) {
		t.Errorf("first %v are shared, want %v", got, want)
	}
	f.Made("new", maker)
	if got, want := told(2), []string{strconv.Itoa(most), "new"}; !slices.Equal(got, want) {
		t.Errorf("then %v are shared, want %v", got, want)
	}
	if got := told(most); len(got) != most-3 || slices.Contains(got, "2") || !slices.Contains(got, "3") {
		t.Errorf("then %d are shared", len(got))
	}
	if got := told(1); got != nil {
		t.Errorf("at last %v are shared", got)
	}
	f.ReportMakers()
	if got, want := told(1), []string{"new"}; !slices.Equal(got, want) {
		t.Errorf("with a new peer %v are shared, want %v", got, want)
	}
}
