package engineclient

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/pflag"
)

// Flags are the command line's settings for calling engines. The zero Flags is plain HTTP without a
// token.
type Flags struct {
	tokenFile  string
	tls        bool
	caFile     string
	skipVerify bool
}

// Register adds the flags, the same for each program that calls engines.
func (f *Flags) Register(fs *pflag.FlagSet) {
	fs.StringVar(&f.tokenFile, "engine-token-file", "",
		"send engines the bearer token in this `FILE`, which may be replaced at any time; with --kube, name a Secret in each pool's PoolSettings instead")
	fs.BoolVar(&f.tls, "engine-tls", false,
		"call engines over TLS; an engine's certificate must be for its name in --endpoints or an EndpointList, else for its IP address")
	fs.StringVar(&f.caFile, "engine-ca-file", "", "with --engine-tls: trust only the certificate authorities in this PEM `FILE`")
	fs.BoolVar(&f.skipVerify, "engine-insecure-skip-verify", false,
		"with --engine-tls: accept any certificate; an attacker between extproc and the engine can then read the token")
}

// Check returns which flags conflict, with objects from an API server (kube) or from a folder and
// the command line.
func (f *Flags) Check(kube bool) error {
	switch {
	case kube && f.tokenFile != "":
		return errors.New("--engine-token-file does not work with --kube, where each pool has its own token: name a Secret in spec.engineToken of its PoolSettings")
	case !f.tls && f.caFile != "":
		return errors.New("--engine-ca-file needs --engine-tls")
	case !f.tls && f.skipVerify:
		return errors.New("--engine-insecure-skip-verify needs --engine-tls")
	case f.caFile != "" && f.skipVerify:
		return errors.New("--engine-insecure-skip-verify and --engine-ca-file exclude each other: leave one of them out")
	}
	return nil
}

// Access reads the files that the flags name.
func (f *Flags) Access(log *slog.Logger) (Access, error) {
	a := Access{Tokens: NewTokens(nil)}
	if f.tokenFile != "" {
		file, err := OpenToken(f.tokenFile, log)
		if err != nil {
			return a, fmt.Errorf("--engine-token-file: %w", err)
		}
		a.Tokens = NewTokens(file.Token)
	}
	if !f.tls {
		return a, nil
	}
	a.TLS = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.skipVerify}
	if f.caFile != "" {
		text, err := os.ReadFile(f.caFile)
		if err != nil {
			return a, fmt.Errorf("--engine-ca-file: %w", err)
		}
		a.TLS.RootCAs = x509.NewCertPool()
		if !a.TLS.RootCAs.AppendCertsFromPEM(text) {
			return a, fmt.Errorf("--engine-ca-file: %s contains no PEM certificate", f.caFile)
		}
	}
	return a, nil
}
