package llm

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A hook retries while control is unavailable. Any other answer of control ends it.
func TestHookRetriesUntilControlAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		codes []int
		asked int32
		fails string
	}{
		"it can":      {[]int{503, 200}, 2, ""},
		"never":       {[]int{503}, 2, "has not answered within"},
		"not its pod": {[]int{404, 200}, 1, "404: words"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				n := int(asked.Add(1))
				w.WriteHeader(c.codes[min(n, len(c.codes))-1])
				_, _ = w.Write([]byte("words\n"))
			}))
			defer s.Close()
			var out bytes.Buffer
			err := WaitForControl(t.Context(), s.URL, askAgain+500*time.Millisecond, &out)
			if asked.Load() != c.asked || (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) ||
				(out.String() == "words\n") != (err == nil) {
				t.Errorf("asked %d times, %v, %q", asked.Load(), err, out.String())
			}
		})
	}
}
