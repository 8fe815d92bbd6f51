package command

import (
	"testing"

	"github.com/headgate/headgate/test/apiserver"
)

// TestMain has the tests share one API server.
func TestMain(m *testing.M) { apiserver.Main(m) }
