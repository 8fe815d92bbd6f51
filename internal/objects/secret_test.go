package objects_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/objects"
)

func TestNothingPrintsAPrivateKey(t *testing.T) {
	of := objects.KeyPair{Name: objects.Name{Name: "s"}, Key: objects.PrivateKey("hidden")}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%08b"} {
		for _, what := range []any{of, &of, of.Key, []objects.KeyPair{of}, objects.Network{KeyPairs: []objects.KeyPair{of}}} {
			fmt.Fprintf(&out, verb+"\n", what)
		}
	}
	for _, log := range []*slog.Logger{slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.NewJSONHandler(&out, nil))} {
		log.Info("it has a key", "pair", of, "key", of.Key)
	}
	text, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(text)
	for _, shown := range []string{"hidden", "aGlkZGVu", "68696464656", "104 105 100", "150 151 144", "0x68", "68 69 64"} {
		if strings.Contains(strings.ToLower(out.String()), strings.ToLower(shown)) {
			t.Errorf("%s is printed:\n%s", shown, out.String())
		}
	}
	if got := strings.Count(out.String(), "(a private key)"); got < 50 {
		t.Errorf("it is said %d times that there is a key", got)
	}
}
