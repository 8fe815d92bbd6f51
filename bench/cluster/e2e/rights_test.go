//go:build cluster

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/test/apiserver"
)

// The programs use every right that the manifests grant, and need no others. This test evaluates
// the API requests of all other tests, so its file must be the last one.
func TestRightsAreThoseThatAreUsed(t *testing.T) {
	requests, err := apiserver.Requests(k8s.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	config, err := k8s.Config()
	if err != nil {
		t.Fatal(err)
	}
	unused, denied, err := apiserver.Rights(t.Context(), config, system, requests)
	if err != nil {
		t.Fatal(err)
	}
	if len(denied) > 0 {
		t.Errorf("denied was:\n%s", strings.Join(denied, "\n"))
	}
	// The right to list is needed only for API servers that do not support streaming lists.
	unused = slices.DeleteFunc(unused, func(right string) bool { return strings.Contains(right, ": list ") })
	if len(unused) > 0 {
		t.Errorf("granted and never used was:\n%s", strings.Join(unused, "\n"))
	}
}
