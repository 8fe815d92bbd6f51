package stream

import (
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// All picks get the same body, so picks whose engine has another name for the model are dropped.
func TestPicksShareOneBody(t *testing.T) {
	at := func(address, model string) pick.Decision {
		return pick.Decision{Endpoint: &pick.Endpoint{Address: address}, Model: model}
	}
	for want, picks := range map[string][]pick.Decision{
		"10.0.0.1:8000": {at("10.0.0.1:8000", "sql")},
		"10.0.0.2:8000,10.0.0.1:8000,[fd00::1]:80": {at("10.0.0.2:8000", "sql"), at("10.0.0.1:8000", "sql"), at("[fd00::1]:80", "sql")},
		"10.0.0.3:8000,10.0.0.1:8000": {
			at("10.0.0.3:8000", "llama"), at("10.0.0.2:8000", "mistral"),
			at("10.0.0.1:8000", "llama"),
		},
	} {
		if got := destination(picks, func(e string) string { return e }); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
