package command

import (
	"testing"

	"github.com/headgate/headgate/test/apiserver"
)

// TestMain starts the API server that all tests of the package share.
func TestMain(m *testing.M) { apiserver.Main(m) }
