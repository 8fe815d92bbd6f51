package objects

import (
	"fmt"
	"io"
	"maps"
)

// SecretKind is the kind of Secrets.
const SecretKind = "Secret"

// KeyPair is the part of a folder's Secret that Headgate needs: a certificate and its key, as
// written. Secrets of an API server are not part of a World: each is read by name.
type KeyPair struct {
	Name Name
	// Certificate is the Secret's tls.crt and Key its tls.key; nil if it has none.
	Certificate []byte
	Key         PrivateKey
}

// Keys of a Secret's data for a certificate, and of a ConfigMap's for certificate authorities.
const (
	CertificateKey = "tls.crt"
	PrivateKeyKey  = "tls.key"
	AuthorityKey   = "ca.crt"
)

// ConfigMapKind is the kind of ConfigMaps.
const ConfigMapKind = "ConfigMap"

// Authorities is the part of a folder's ConfigMap that Headgate needs: CA certificates, as written.
// ConfigMaps of an API server are not part of a World: each is read by name.
type Authorities struct {
	Name Name
	// Certificates is the ConfigMap's ca.crt; nil if it has none.
	Certificates []byte
}

// ConfigData returns all data of a ConfigMap.
func ConfigData(text map[string]string, binary map[string][]byte) map[string][]byte {
	all := make(map[string][]byte, len(text)+len(binary))
	for key, value := range text {
		all[key] = []byte(value)
	}
	maps.Copy(all, binary)
	return all
}

// PrivateKey is a private key that is never printed: formatting, logs and JSON show a placeholder.
type PrivateKey []byte

const concealed = "(a private key)"

// Format implements [fmt.Formatter] for every verb.
func (PrivateKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, concealed) }

// MarshalText implements [encoding.TextMarshaler], which JSON and logs use.
func (PrivateKey) MarshalText() ([]byte, error) { return []byte(concealed), nil }
