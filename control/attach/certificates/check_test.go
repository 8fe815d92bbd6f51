package certificates_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/control/attach/certificates"
	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/objects"
)

// now is the time at which certificates are checked.
var now = time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC)

// signed returns a self-signed certificate in DER. Callers may change the template of the
// certificate.
func signed(t *testing.T, key crypto.Signer, changes ...func(*x509.Certificate)) []byte {
	t.Helper()
	is := &x509.Certificate{
		SerialNumber: big.NewInt(7), DNSNames: []string{"one.test"}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(time.Hour),
	}
	for _, change := range changes {
		change(is)
	}
	der, err := x509.CreateCertificate(rand.Reader, is, is, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// inPEM encodes a PEM block.
func inPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// pkcs8 encodes a key in PEM.
func pkcs8(t *testing.T, key crypto.Signer) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return inPEM("PRIVATE KEY", der)
}

func onCurve(t *testing.T, c elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func ofRSA(t *testing.T, bits int) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// pair returns a self-signed certificate, valid for some hours around a time, and its key.
func pair(t *testing.T, at time.Time) (chain, key string) {
	t.Helper()
	private := onCurve(t, elliptic.P256())
	return inPEM("CERTIFICATE", signed(t, private, func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = at.Add(-time.Hour), at.Add(time.Hour)
	})), pkcs8(t, private)
}

// proxy is a real Envoy that validates a configuration.
type proxy struct{ binary, dir string }

func newProxy(t *testing.T) proxy {
	t.Helper()
	binary, err := find.Envoy(t.Context(), "../../../.cache", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return proxy{binary, t.TempDir()}
}

// takes returns Envoy's error for listeners with these pairs of certificate and key; empty if Envoy
// accepts them.
func (p proxy) takes(t *testing.T, pairs ...[2]string) string {
	t.Helper()
	var listeners []string
	for i, of := range pairs {
		inline := func(text string) string {
			return fmt.Sprintf(`{"inline_bytes": %q}`, base64.StdEncoding.EncodeToString([]byte(text)))
		}
		listeners = append(listeners, fmt.Sprintf(`{"name": "l%d", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}}, "filter_chains": [{
			"filters": [{"name": "e", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo"}}],
			"transport_socket": {"name": "tls", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
				"common_tls_context": {"tls_certificates": [{"certificate_chain": %s, "private_key": %s}]}}}}]}`, i, 20000+i, inline(of[0]), inline(of[1])))
	}
	file := filepath.Join(p.dir, "envoy.json")
	if err := os.WriteFile(file, []byte(`{"static_resources": {"listeners": [`+strings.Join(listeners, ",")+`]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), p.binary, "--mode", "validate", "--config-path", file, "--log-level",
		"error").CombinedOutput(); err != nil {
		return err.Error() + ": " + string(out)
	}
	return ""
}

// If Check accepts a certificate, a real Envoy accepts the result. If Check rejects one, Envoy
// rejects it as written, except in some cases where Check is stricter.
func TestCheckMatchesEnvoy(t *testing.T) {
	envoy := newProxy(t)
	ec, other, ofEd := onCurve(t, elliptic.P256()), onCurve(t, elliptic.P256()), ed25519.NewKeyFromSeed(make([]byte, 32))
	rsa2048 := ofRSA(t, 2048)
	of := func(key crypto.Signer, changes ...func(*x509.Certificate)) string {
		return inPEM("CERTIFICATE", signed(t, key, changes...))
	}
	chain, key := of(ec), pkcs8(t, ec)
	bare, _ := pem.Decode([]byte(key))
	sec1, err := x509.MarshalECPrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	encrypted := string(pem.EncodeToMemory(&pem.Block{
		Type:    "EC PRIVATE KEY",
		Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-128-CBC,00112233445566778899AABBCCDDEEFF"}, Bytes: sec1,
	}))
	usage := func(is x509.KeyUsage) func(*x509.Certificate) { return func(c *x509.Certificate) { c.KeyUsage = is } }
	named := func(change func(*x509.Certificate)) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			c.DNSNames = nil
			change(c)
		}
	}
	staple := func(value string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 3, 6, 1, 5, 5, 7, 1, 24}, Value: []byte(value)}}
		}
	}
	var taken [][2]string
	for _, c := range []struct {
		name, chain, key string
		fault            string // part of the Fault; empty if Check accepts
		stricter         bool   // Envoy accepts what Check rejects
	}{
		{name: "P-256", chain: chain, key: key},
		{name: "P-384", chain: of(onCurve(t, elliptic.P384())), key: "own"},
		{name: "P-521", chain: of(onCurve(t, elliptic.P521())), key: "own"},
		{
			name: "P-224", chain: of(onCurve(t, elliptic.P224())), key: key,
			fault: "the key of tls.crt is on the curve P-224, but Envoy accepts P-256, P-384 and P-521",
		},
		{name: "Ed25519", chain: of(ofEd), key: pkcs8(t, ofEd)},
		{name: "RSA", chain: of(rsa2048), key: pkcs8(t, rsa2048)},
		{name: "RSA in PKCS 1", chain: of(rsa2048), key: inPEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsa2048))},
		{
			name: "a small RSA key", chain: of(ofRSA(t, 2047)), key: key,
			fault: "the RSA key of tls.crt has 2047 bits, but Envoy accepts 2048 to 16384",
		},
		{
			name: "a large RSA key", chain: large(t, ec, 16385), key: key,
			fault: "the RSA key of tls.crt has 16385 bits, but Envoy accepts 2048 to 16384",
		},
		{name: "SEC 1", chain: chain, key: inPEM("EC PRIVATE KEY", sec1)},
		{name: "SEC 1 after parameters", chain: chain, key: inPEM("EC PARAMETERS", []byte("\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07")) +
			inPEM("EC PRIVATE KEY", sec1)},
		{name: "labels that Envoy does not read", chain: chain, key: inPEM("PRIVATE KEY", sec1)},
		{name: "headers that Envoy does not read", chain: strings.Replace(chain, "\n", "\na: b\n\n", 1), key: key},
		{name: "two in a chain", chain: chain + of(other), key: key},
		{name: "text around it", chain: "mine:\r\n" + strings.ReplaceAll(chain, "\n", "\r\n") + "end", key: "\n" + key + key},
		{name: "a key beside the certificate", chain: key + chain, key: chain + key},

		{name: "the key of another", chain: chain, key: pkcs8(t, other), fault: "tls.key does not match the first certificate in tls.crt"},
		{name: "the key of another kind", chain: chain, key: pkcs8(t, rsa2048), fault: "tls.key does not match the first certificate"},
		{name: "the chain the other way round", chain: of(other) + chain, key: key, fault: "tls.key does not match the first certificate"},
		{name: "two keys", chain: chain, key: pkcs8(t, other) + key, fault: "tls.key does not match the first certificate"},
		{name: "no certificate", key: key, fault: "tls.crt is missing"},
		{name: "no key", chain: chain, key: " \n", fault: "tls.key is missing"},
		{name: "no PEM", chain: string(signed(t, ec)), key: key, fault: "tls.crt has no certificate: write it in PEM"},
		{name: "no key in PEM", chain: chain, key: string(sec1), fault: "tls.key has no key: write it in PEM"},
		{name: "a certificate in the place of the key", chain: chain, key: chain, fault: "tls.key has no key"},
		{
			name: "a chain that is cut off", chain: chain + of(other)[:100], key: key,
			fault: "tls.crt is truncated or damaged: of 2 PEM blocks 1 can be parsed",
		},
		{
			name: "a key that is cut off", chain: chain, key: key[:60],
			fault: "tls.key is truncated or damaged: of 1 PEM blocks 0 can be parsed",
		},
		{
			name: "no base64", chain: chain + "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n", key: key,
			fault: "tls.crt is truncated or damaged",
		},
		{
			name: "no DER", chain: chain + inPEM("CERTIFICATE", []byte("x")), key: key,
			fault: "certificate 2 of tls.crt cannot be read: x509: ",
		},
		{
			name: "no DER of a key", chain: chain, key: inPEM("PRIVATE KEY", []byte("x")),
			fault: "tls.key cannot be parsed: it must be an RSA, ECDSA or Ed25519 key",
		},
		{name: "encrypted", chain: chain, key: encrypted, fault: "tls.key is encrypted: store it without a password"},
		{
			name: "encrypted in PKCS 8", chain: chain, key: inPEM("ENCRYPTED PRIVATE KEY", bare.Bytes),
			fault: "tls.key is encrypted: store it without a password",
		},
		{
			name: "another word for a certificate", chain: strings.ReplaceAll(chain, "CERTIFICATE", "TRUSTED CERTIFICATE"), key: key,
			fault: "tls.crt has no certificate", stricter: true,
		},

		{name: "expired", chain: of(ec, func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }), key: key},
		{name: "not yet valid", chain: of(ec, func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) }), key: key},
		{name: "for signatures", chain: of(ec, usage(x509.KeyUsageDigitalSignature)), key: key},
		{
			name: "not for signatures", chain: of(ec, usage(x509.KeyUsageKeyAgreement)), key: key,
			fault: "the certificate in tls.crt lacks the key usage digitalSignature",
		},
		{name: "RSA not for signatures", chain: of(rsa2048, usage(x509.KeyUsageKeyEncipherment)), key: pkcs8(t, rsa2048)},
		{name: "must-staple", chain: of(ec, staple("\x30\x03\x02\x01\x05")), key: key, fault: "requires an OCSP response (must-staple)"},
		{name: "another feature of TLS", chain: of(ec, staple("\x30\x03\x02\x01\x11")), key: key},
		{name: "for no name", chain: of(ec, named(func(*x509.Certificate) {})), key: key, fault: "the certificate in tls.crt has no name"},
		{
			name: "for an address of mail", chain: of(ec, named(func(c *x509.Certificate) { c.EmailAddresses = []string{"a@b.test"} })),
			key: key, fault: "the certificate in tls.crt has no name",
		},
		{
			name: "for an IP address", chain: of(ec, named(func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })),
			key: key,
		},
		{name: "for a URI", chain: of(ec, named(func(c *x509.Certificate) {
			c.URIs = []*url.URL{{Scheme: "spiffe", Host: "a", Path: "/b"}}
		})), key: key},
		{name: "for a common name", chain: of(ec, named(func(c *x509.Certificate) { c.Subject.CommonName = "one.test" })), key: key},
	} {
		if c.key == "own" {
			private := onCurve(t, map[string]elliptic.Curve{"P-384": elliptic.P384(), "P-521": elliptic.P521()}[c.name])
			c.chain, c.key = of(private), pkcs8(t, private)
		}
		is := certificates.Check([]byte(c.chain), objects.PrivateKey(c.key), now)
		switch {
		case c.fault == "" && is.Fault != "":
			t.Errorf("%s is rejected: %s", c.name, is.Fault)
		case c.fault == "":
			if _, err := tls.X509KeyPair(is.Chain, is.Key); err != nil {
				t.Errorf("%s is accepted, but is not a key pair: %v", c.name, err)
			}
			taken = append(taken, [2]string{string(is.Chain), string(is.Key)})
		case !strings.Contains(is.Fault, c.fault) || is.Chain != nil || is.Key != nil:
			t.Errorf("%s is rejected with %q, want %q; the chain is %s", c.name, is.Fault, c.fault, is.Chain)
		case (envoy.takes(t, [2]string{c.chain, c.key}) == "") != c.stricter:
			t.Errorf("%s is rejected; accepted by Envoy: %v", c.name, !c.stricter)
		}
	}
	if said := envoy.takes(t, taken...); said != "" {
		t.Errorf("Envoy rejects accepted certificates: %s", said)
	}
}

// large returns a certificate with an RSA key of a size that would take minutes to generate. Only
// the public key exists.
func large(t *testing.T, by crypto.Signer, bits int) string {
	t.Helper()
	n := new(big.Int).SetBit(big.NewInt(1), bits-1, 1)
	is := &x509.Certificate{
		SerialNumber: big.NewInt(7), DNSNames: []string{"one.test"}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, is, is, &rsa.PublicKey{N: n, E: 65537}, by)
	if err != nil {
		t.Fatal(err)
	}
	return inPEM("CERTIFICATE", der)
}

// The result has all certificates of a chain, in order, and nothing else.
func TestReencodedChainIsComplete(t *testing.T) {
	chain, key := pair(t, now)
	issuer, _ := pair(t, now)
	is := certificates.Check([]byte("one\n"+key+chain+"two\n"+issuer), objects.PrivateKey("three\n"+key+key), now)
	if string(is.Chain) != chain+issuer || string(is.Key) != key || is.Fault != "" || is.Warning != "" {
		t.Errorf("the chain is %s, with a key, fault %q and warning %q", is.Chain, is.Fault, is.Warning)
	}
}

// Envoy serves expired and future certificates, and clients reject them.
func TestCertificateOutsideItsValidityGivesAWarning(t *testing.T) {
	chain, key := pair(t, now)
	old := onCurve(t, elliptic.P256())
	issuer := inPEM("CERTIFICATE", signed(t, old, func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }))
	for _, c := range []struct {
		chain string
		at    time.Duration
		want  string
	}{
		{chain, 0, ""},
		{chain, 59 * time.Minute, ""},
		{chain, 61 * time.Minute, "certificate 1 of tls.crt expired at 2026-11-22 10:30 UTC, and clients reject it: replace it"},
		{chain, -61 * time.Minute, "certificate 1 of tls.crt is not valid before 2026-11-22 08:30 UTC, and clients reject it until then"},
		{chain + issuer, 0, "certificate 2 of tls.crt expired at 2026-11-22 09:29 UTC, and clients reject it: replace it"},
	} {
		is := certificates.Check([]byte(c.chain), objects.PrivateKey(key), now.Add(c.at))
		if is.Warning != c.want || is.Fault != "" || !slices.Equal(is.Chain, []byte(c.chain)) {
			t.Errorf("after %v: warning %q, fault %q, want the warning %q", c.at, is.Warning, is.Fault, c.want)
		}
	}
}
