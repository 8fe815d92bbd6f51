package statuswriter_test

import (
	"testing"

	"github.com/headgate/headgate/test/apiserver"
)

// TestMain lets the tests share one API server.
func TestMain(m *testing.M) { apiserver.Main(m) }
