package certificates

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// Limits of RSA keys, in bits. Envoy 1.40 rejects smaller keys, and its BoringSSL larger ones.
const (
	minRSA = 2048
	maxRSA = 16384
)

// layout is the format of times in messages.
const layout = "2006-01-02 15:04 MST"

// Check returns the certificate in tls.crt and tls.key of a Secret. Its Fault is why Envoy would
// reject it, and its Warning why clients reject it at the time now. The result is encoded again:
// the certificates in order, and the key in PKCS 8. Envoy parses PEM differently, so this ensures
// that it gets exactly what was checked. No message contains the key.
func Check(chain []byte, key objects.PrivateKey, now time.Time) plan.Certificate {
	all, err := parseChain(objects.CertificateKey, chain)
	if err == nil {
		err = served(all[0])
	}
	var private crypto.Signer
	if err == nil {
		private, err = parseKey(key)
	}
	if public, ok := all.public(); err == nil && (!ok || !public.Equal(private.Public())) {
		err = errors.New("tls.key does not match the first certificate in tls.crt")
	}
	if err != nil {
		return plan.Certificate{Fault: err.Error()}
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return plan.Certificate{Fault: "tls.key cannot be written for Envoy"}
	}
	return plan.Certificate{
		Chain: all.pem(), Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		Warning: all.warning(now),
	}
}

// CheckAuthorities returns the certificates in ca.crt of a ConfigMap as the Chain. If one is
// invalid, it returns a Fault.
func CheckAuthorities(text []byte) plan.Certificate {
	all, err := parseChain(objects.AuthorityKey, text)
	if err != nil {
		return plan.Certificate{Fault: err.Error()}
	}
	return plan.Certificate{Chain: all.pem()}
}

// certificates is a chain, the server's certificate first.
type certificates []*x509.Certificate

// parseChain parses a certificate chain. It returns at least one certificate, or an error.
func parseChain(of string, text []byte) (all certificates, err error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, fmt.Errorf("%s is missing: set it to the certificate in PEM", of)
	}
	found, err := blocks(of, text)
	if err != nil {
		return nil, err
	}
	for _, b := range found {
		if b.Type != "CERTIFICATE" {
			continue
		}
		is, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d of %s cannot be read: %w", len(all)+1, of, err)
		}
		all = append(all, is)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no certificate: write it in PEM, from a line -----BEGIN CERTIFICATE----- to its end", of)
	}
	return all, nil
}

// blocks parses all PEM blocks of a text. It returns an error for a broken block, which PEM parsers
// skip: the chain would lack a certificate.
func blocks(name string, text []byte) (all []*pem.Block, err error) {
	begun := bytes.Count(text, []byte("-----BEGIN "))
	for rest := text; ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break
		}
		all = append(all, b)
	}
	if len(all) < begun {
		return nil, fmt.Errorf("%s is truncated or damaged: of %d PEM blocks %d can be parsed", name, begun, len(all))
	}
	return all, nil
}

// mustStaple is the X.509 extension that requires an OCSP response (RFC 7633), with its value.
var mustStaple = struct{ id, value string }{"1.3.6.1.5.5.7.1.24", "\x30\x03\x02\x01\x05"}

// served returns why Envoy 1.40 does not serve a well-formed certificate, nil if it does. The
// reasons are those that a real Envoy reported.
func served(c *x509.Certificate) error {
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n < minRSA || n > maxRSA {
			return fmt.Errorf("the RSA key of tls.crt has %d bits, but Envoy accepts %d to %d: make a certificate with another key", n,
				minRSA, maxRSA)
		}
	case *ecdsa.PublicKey:
		if !slices.Contains([]elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}, key.Curve) {
			return fmt.Errorf("the key of tls.crt is on the curve %s, but Envoy accepts P-256, P-384 and P-521: make a certificate with another key",
				key.Curve.Params().Name)
		}
		if c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
			return errors.New("the certificate in tls.crt lacks the key usage digitalSignature, which Envoy requires with an ECDSA key: make one with it")
		}
	case ed25519.PublicKey:
	default:
		return errors.New("the key of tls.crt has a type that Envoy does not support: make a certificate with an ECDSA, RSA or Ed25519 key")
	}
	for _, e := range c.Extensions {
		if e.Id.String() == mustStaple.id && string(e.Value) == mustStaple.value {
			return errors.New("the certificate in tls.crt requires an OCSP response (must-staple), which a Secret does not have: make one without it")
		}
	}
	if c.Subject.CommonName == "" && len(c.DNSNames)+len(c.IPAddresses)+len(c.URIs) == 0 {
		return errors.New("the certificate in tls.crt has no name: make one for the hostnames of the listener")
	}
	return nil
}

// parseKey parses tls.key.
func parseKey(text []byte) (crypto.Signer, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("tls.key is missing: set it to the key of the certificate in PEM")
	}
	found, err := blocks("tls.key", text)
	if err != nil {
		return nil, err
	}
	for _, b := range found {
		if b.Type != "PRIVATE KEY" && !strings.HasSuffix(b.Type, " PRIVATE KEY") {
			continue // another block, such as the parameters of a curve
		}
		if b.Type == "ENCRYPTED PRIVATE KEY" || b.Headers["DEK-Info"] != "" {
			return nil, errors.New("tls.key is encrypted: store it without a password (openssl pkey decrypts it)")
		}
		if key, ok := parseDER(b.Bytes); ok {
			return key, nil
		}
		return nil, errors.New("tls.key cannot be parsed: it must be an RSA, ECDSA or Ed25519 key in PKCS 8, PKCS 1 or SEC 1")
	}
	return nil, errors.New("tls.key has no key: write it in PEM, from a line -----BEGIN PRIVATE KEY----- to its end")
}

// parseDER parses a key in one of three encodings. It ignores the parsers' errors, since they may
// contain the key.
func parseDER(der []byte) (crypto.Signer, bool) {
	if key, err := x509.ParsePKCS8PrivateKey(der); err == nil {
		signer, ok := key.(crypto.Signer)
		return signer, ok
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key, true
	}
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key, true
	}
	return nil, false
}

// public returns the public key of the first certificate.
func (all certificates) public() (key interface{ Equal(crypto.PublicKey) bool }, ok bool) {
	if len(all) == 0 {
		return nil, false
	}
	key, ok = all[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return key, ok
}

func (all certificates) pem() []byte {
	var text bytes.Buffer
	for _, c := range all {
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // a write to a buffer does not fail
	}
	return text.Bytes()
}

// warning returns why clients reject a chain that Envoy serves; empty if it is valid now.
func (all certificates) warning(now time.Time) string {
	for i, c := range all {
		switch {
		case now.After(c.NotAfter):
			return fmt.Sprintf("certificate %d of tls.crt expired at %s, and clients reject it: replace it", i+1,
				c.NotAfter.UTC().Format(layout))
		case now.Before(c.NotBefore):
			return fmt.Sprintf("certificate %d of tls.crt is not valid before %s, and clients reject it until then", i+1,
				c.NotBefore.UTC().Format(layout))
		}
	}
	return ""
}
