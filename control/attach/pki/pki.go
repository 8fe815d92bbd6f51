// Package pki makes the certificates with which control and the Envoys of Gateways authenticate to
// each other. control has its own authority, which signs one certificate for control and one for
// each Gateway. control learns the Gateway of a caller from its certificate, and ignores the node
// that Envoy sends.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"strings"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/objects"
)

const (
	// authorityAge is how long an authority is valid. To replace it, delete its Secret and restart
	// the Deployments.
	authorityAge = 10 * 366 * 24 * time.Hour
	// gatewayAge is how long the certificate of a Gateway is valid, and renewal the age at which it
	// is replaced. Kubelets update it in the pods within minutes, and Envoy reloads it.
	gatewayAge = 90 * 24 * time.Hour
	renewal    = 60 * 24 * time.Hour
	// before is subtracted from the start of each certificate's validity, since clocks differ.
	before = time.Hour
)

const (
	scheme = "headgate"
	kind   = "gateway"
)

// Authority signs certificates. Make one with [New] or [Read]. It is safe for concurrent use.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// New makes an Authority with a new key.
func New(now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "Headgate's Gateways"}, NotAfter: now.Add(authorityAge),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := sign(template, template, key.Public(), key, now)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &Authority{certificate, key}, err
}

// Read parses what [Authority.PEM] returned.
func Read(certificate, key []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("the certificate is not a certificate authority")
	}
	return &Authority{pair.Leaf, signer}, nil
}

// Certificate returns the Authority's certificate in PEM.
func (a *Authority) Certificate() []byte { return encode("CERTIFICATE", a.certificate.Raw) }

// PEM returns the Authority's certificate and key in PEM.
func (a *Authority) PEM() (certificate, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	return a.Certificate(), encode("PRIVATE KEY", der), err
}

// Gateway makes a key and a certificate for the Envoys of a Gateway, in PEM.
func (a *Authority) Gateway(name objects.Name, now time.Time) (certificate, key []byte, err error) {
	pair, err := a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "an Envoy of a Gateway"}, URIs: []*url.URL{address(name)}, NotAfter: now.Add(gatewayAge),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, now)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	return encode("CERTIFICATE", pair.Certificate[0]), encode("PRIVATE KEY", der), err
}

// Control returns the TLS configuration of control as a server. It accepts only clients whose
// certificate the Authority signed.
func (a *Authority) Control(now time.Time) (*tls.Config, error) {
	pair, err := a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: wire.ControlName}, DNSNames: []string{wire.ControlName}, NotAfter: now.Add(authorityAge),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, now)
	if err != nil {
		return nil, err
	}
	callers := x509.NewCertPool()
	callers.AddCert(a.certificate)
	return &tls.Config{
		Certificates: []tls.Certificate{*pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: callers,
		MinVersion: tls.VersionTLS13,
	}, nil
}

// Fresh reports whether the Authority signed a PEM certificate for this Gateway, and it need not be
// renewed yet.
func (a *Authority) Fresh(certificate []byte, name objects.Name, now time.Time) bool {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return false
	}
	is, err := x509.ParseCertificate(block.Bytes)
	if err != nil || is.CheckSignatureFrom(a.certificate) != nil {
		return false
	}
	of, err := GatewayOf(is)
	return err == nil && of == name && now.Before(is.NotBefore.Add(renewal)) && now.After(is.NotBefore)
}

// GatewayOf returns the Gateway that a verified certificate names.
func GatewayOf(certificate *x509.Certificate) (objects.Name, error) {
	for _, u := range certificate.URIs {
		if name, ok := objects.ParseName(strings.TrimPrefix(u.Path, "/")); ok && u.Scheme == scheme && u.Host == kind {
			return name, nil
		}
	}
	return objects.Name{}, errors.New("the certificate names no Gateway")
}

// address returns the URI that names a Gateway in certificates.
func address(name objects.Name) *url.URL {
	return &url.URL{Scheme: scheme, Host: kind, Path: "/" + name.String()}
}

// issue makes a key, and signs a certificate for it.
func (a *Authority) issue(template *x509.Certificate, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := sign(template, a.certificate, key.Public(), a.key, now)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func sign(template, by *x509.Certificate, public crypto.PublicKey, key crypto.Signer, now time.Time) (der []byte, err error) {
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	template.NotBefore = now.Add(-before)
	return x509.CreateCertificate(rand.Reader, template, by, public, key)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
