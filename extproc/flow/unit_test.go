package flow

import (
	"math"
	"testing"
)

// Engine time is converted at the rate of the requests whose times are predicted. Numbers that are
// no numbers do not count, and requests without tokens are converted as well.
func TestUnit(t *testing.T) {
	var u unit
	tokenless := Service{Fixed: 0.5}
	if got := u.scale(&tokenless); got != defaultRate {
		t.Errorf("before any prediction a second is worth %v tokens", got)
	}
	for _, is := range []Service{
		{Prompt: 100, Fixed: math.NaN(), Tokens: 10}, {Prompt: 100, Fixed: math.Inf(1)}, {Prompt: 100, Fixed: -1}, {Prompt: 100},
	} {
		if got := u.scale(&is); got != defaultRate {
			t.Errorf("after %+v a second is worth %v tokens", is, got)
		}
	}
	for range 3 {
		u.scale(&Service{Prompt: 100, Fixed: 0.02, PerToken: 0.004, Tokens: 20}) // 140 tokens in 0.1 s
	}
	if got := u.scale(&tokenless); math.Abs(got-1400) > 1e-6 {
		t.Errorf("a second is worth %v tokens", got)
	}
	if got := u.scale(&Service{InTokens: true, Fixed: 100}); got != 1 {
		t.Errorf("a token is worth %v tokens", got)
	}
}
