package ads_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/test/times"
)

var changes = flag.Int("changes", 10,
	"have a real Envoy be told of this many new endpoints of a Service; with 100 and more, fail where that takes too long")

// A new endpoint of a Service gets requests soon after control has read its EndpointSlice.
func TestRealEnvoyHasNewEndpointsOfAService(t *testing.T) {
	s := start(t, 22)
	s.backend("first", 21999)
	s.apply(to("first"))
	s.await("200 first")
	var until times.Times
	for i := range *changes {
		word := fmt.Sprint("endpoint ", i)
		s.says(word, 21000+i)
		s.slice("first", 21000+i)
		began := time.Now()
		s.tell()
		s.await("200 " + word)
		until = append(until, time.Since(began))
	}
	t.Logf("from the change of an EndpointSlice to a request that its endpoint serves: %v", until)
	until.Bound(t, "a new endpoint", 50*time.Millisecond)
}
