package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"
)

// The agent trusts public certificate authorities where the system has none, as in its image.
func TestTrustsPublicAuthorities(t *testing.T) {
	const child = "HEADGATE_TEST_WITHOUT_AUTHORITIES"
	if _, is := os.LookupEnv(child); is { //nolint:forbidigo // set by this test
		pool, err := x509.SystemCertPool()
		if err != nil || pool.Equal(x509.NewCertPool()) {
			t.Fatalf("no certificate authorities: %v", err)
		}
		return
	}
	self := exec.Command(os.Args[0], "-test.run=^TestTrustsPublicAuthorities$")
	self.Env = append(os.Environ(), child+"=1", "SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent")
	if out, err := self.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
