package stream

import (
	"testing"

	"github.com/headgate/headgate/extproc/processing"
	"github.com/headgate/headgate/internal/objects"
)

// A retry has the identity of the first request. Other bodies, tenants, programs and API keys have
// other identities.
func TestIdentities(t *testing.T) {
	is := objects.Sharing{TenantHeader: "x-tenant-id", ProgramHeader: "x-program-id"}
	of := func(body string, headers ...string) uint64 {
		var all []processing.Header
		for i := 0; i < len(headers); i += 2 {
			all = append(all, header(headers[i], headers[i+1]))
		}
		r := readRequest(all)
		return identityOf(&r, is, []byte(body))
	}
	if of("a", "x-request-id", "1") != of("a", "x-request-id", "2") {
		t.Error("a retry has another identity")
	}
	seen := map[uint64]bool{}
	for _, id := range []uint64{
		of("a"), of("b"), of("a", "x-tenant-id", "1"), of("a", "x-tenant-id", "2"), of("a", "x-program-id", "1"),
		of("a", "x-headgate-client", "1"), of("a", "x-tenant-id", "1", "x-headgate-client", "1"),
	} {
		if seen[id] || id == 0 {
			t.Errorf("the identity %d is not unique", id)
		}
		seen[id] = true
	}
}
