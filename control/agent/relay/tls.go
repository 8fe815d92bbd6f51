package relay

import (
	"crypto/tls"
	"log/slog"

	"github.com/headgate/headgate/internal/listen"
)

// TLS returns the configuration for clients of the relay. The certificate is in the files tls.crt
// and tls.key of a folder, which are read again when they change.
//
// A client chooses the protocol. If it offers several, HTTP/1.1 is preferred, since not every
// engine serves HTTP/2. Clients of gRPC offer only HTTP/2, and Envoy only the protocol of the pool.
func TLS(dir string, log *slog.Logger) (*tls.Config, error) {
	c, err := listen.TLS(dir, log)
	if err != nil {
		return nil, err
	}
	c.NextProtos = []string{"http/1.1", "h2"}
	return c, nil
}
