package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"

	"github.com/headgate/headgate/extproc/scrape"
)

// engineAccess is how looks reach engines.
type engineAccess struct {
	tls   *tls.Config   // nil for plain HTTP
	token func() string // nil for none
}

// reachEngines reads the files that the command line names for it.
func reachEngines(c config, log *slog.Logger) (engineAccess, error) {
	var a engineAccess
	if c.engineTokenFile != "" {
		file, err := scrape.OpenToken(c.engineTokenFile, log)
		if err != nil {
			return a, fmt.Errorf("--engine-token-file: %w", err)
		}
		a.token = file.Token
	}
	if !c.engineTLS {
		return a, nil
	}
	a.tls = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.engineSkipVerify}
	if c.engineCAFile != "" {
		text, err := os.ReadFile(c.engineCAFile)
		if err != nil {
			return a, fmt.Errorf("--engine-ca-file: %w", err)
		}
		a.tls.RootCAs = x509.NewCertPool()
		if !a.tls.RootCAs.AppendCertsFromPEM(text) {
			return a, fmt.Errorf("--engine-ca-file: %s holds no certificate in PEM", c.engineCAFile)
		}
	}
	return a, nil
}
