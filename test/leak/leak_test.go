package leak

import (
	"maps"
	"testing"
	"time"
)

func TestMapsFindsEveryMap(t *testing.T) {
	type inner struct{ names map[string]bool }
	type outer struct {
		own   map[int]*inner
		list  []inner
		any   any
		next  *outer
		empty map[string]int
		now   time.Time
	}
	v := &outer{
		empty: map[string]int{},
		own:   map[int]*inner{1: {map[string]bool{"a": true}}, 2: {map[string]bool{"b": true, "c": true}}},
		list:  []inner{{map[string]bool{"d": true}}, {}},
		now:   time.Now(),
		any:   inner{map[string]bool{"e": true}},
	}
	v.next = v // a cycle is followed only once
	want := map[string]int{".own": 2, ".own.names": 3, ".list.names": 1, ".any.names": 1, ".empty": 0}
	if got := Maps(v); !maps.Equal(got, want) {
		t.Errorf("Maps returns %v, want %v", got, want)
	}
	want[".list"] = 2
	if got := MapsAndSlices(v); !maps.Equal(got, want) {
		t.Errorf("MapsAndSlices returns %v, want %v", got, want)
	}
}
