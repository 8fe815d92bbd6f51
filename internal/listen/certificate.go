package listen

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// TLS returns the configuration for serving with TLS: with the certificate in a folder
// (--cert-path), which may be replaced at any time, or a self-signed one if dir is empty. Gateways
// do not verify an endpoint picker's certificate; they trust the service by other means.
func TLS(dir string, log *slog.Logger) (*tls.Config, error) {
	get := (&certificate{dir: dir, log: log}).get
	if dir == "" {
		own, err := SelfSigned(time.Now())
		if err != nil {
			return nil, err
		}
		get = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own, nil }
	} else if _, err := get(nil); err != nil {
		return nil, fmt.Errorf("--cert-path: %w", err)
	}
	return &tls.Config{GetCertificate: get, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}, nil
}

// certificate is a pair of files that may change. It is safe for concurrent use.
type certificate struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex // guards the fields below
	changed [2]time.Time
	good    *tls.Certificate
}

// ClientCertificate returns a client's certificate from a folder, read again at each handshake.
func ClientCertificate(dir string, log *slog.Logger) (func(*tls.CertificateRequestInfo) (*tls.Certificate, error), error) {
	own := &certificate{dir: dir, log: log}
	_, err := own.get(nil)
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.get(nil) }, err
}

// get returns the current certificate, or the last valid one if the files are invalid. It checks
// the files at each handshake; there are few, since gateways reuse connections.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cert, key := filepath.Join(c.dir, "tls.crt"), filepath.Join(c.dir, "tls.key")
	var changed [2]time.Time
	for i, path := range []string{cert, key} {
		if info, err := os.Stat(path); err == nil {
			changed[i] = info.ModTime()
		}
	}
	if c.good != nil && changed == c.changed {
		return c.good, nil
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	switch {
	case err == nil:
		c.good, c.changed = &pair, changed
	case c.good == nil:
		return nil, err
	default:
		c.log.Error("cannot read the certificate; keeping the last good one; retrying", "dir", c.dir, "err", err)
	}
	return c.good, nil
}

// SelfSigned makes a self-signed certificate for a year and a day.
func SelfSigned(now time.Time) (*tls.Certificate, error) {
	return Certify(now, 366*24*time.Hour, false, "headgate", "localhost")
}

// Certify makes a self-signed certificate for DNS names, valid from an hour before now for the
// given age. The first name is also its subject. As an authority, it can be the CA that clients
// trust.
func Certify(now time.Time, age time.Duration, authority bool, names ...string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template := x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(age),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if authority {
		template.KeyUsage |= x509.KeyUsageCertSign
		template.BasicConstraintsValid, template.IsCA = true, true
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
