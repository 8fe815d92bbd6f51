package cache_test

import (
	"errors"
	"testing"

	"github.com/headgate/headgate/control/attach/cache"
)

// A result is computed once while every round uses it. After a round that did not use it, it is
// computed again.
func TestMemo(t *testing.T) {
	var m cache.Cache[string, int]
	made := 0
	get := func(key string) int {
		v, err := m.Get(key, func() (int, error) { made++; return made, nil })
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for round, want := range [][]struct {
		key  string
		made int
	}{{{"a", 1}, {"b", 2}, {"a", 1}}, {{"a", 1}, {"b", 2}}, {{"c", 3}, {"a", 1}}, {{"b", 4}, {"a", 1}, {"c", 3}}} {
		for _, w := range want {
			if got := get(w.key); got != w.made {
				t.Errorf("round %d: %s is %d, want %d", round, w.key, got, w.made)
			}
		}
		m.NextRound()
	}
	if made != 4 {
		t.Errorf("%d values were made, want 4", made)
	}
}

func TestFailedCreationIsRetried(t *testing.T) {
	var m cache.Cache[int, string]
	if _, err := m.Get(1, func() (string, error) { return "half", errors.New("no") }); err == nil {
		t.Error("Get returns no error")
	}
	if v, err := m.Get(1, func() (string, error) { return "whole", nil }); v != "whole" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}
