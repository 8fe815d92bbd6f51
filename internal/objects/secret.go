package objects

import (
	"fmt"
	"io"
	"maps"
)

// SecretKind is the kind of Secrets.
const SecretKind = "Secret"

// KeyPair is what Headgate needs of a Secret of a folder: a certificate and its key, as they are written. Those of API servers are no
// objects of a World: each is read by its name.
type KeyPair struct {
	Name Name
	// Certificate is the Secret's tls.crt and Key its tls.key; nil where it has none.
	Certificate []byte
	Key         PrivateKey
}

// Keys of a Secret's data with a certificate, and of a ConfigMap's with authorities.
const (
	CertificateKey = "tls.crt"
	PrivateKeyKey  = "tls.key"
	AuthorityKey   = "ca.crt"
)

// ConfigMapKind is the kind of ConfigMaps.
const ConfigMapKind = "ConfigMap"

// Authorities is what Headgate needs of a ConfigMap of a folder: certificates of those who sign, as they are written. Those of API
// servers are no objects of a World: each is read by its name.
type Authorities struct {
	Name Name
	// Certificates is the ConfigMap's ca.crt; nil where it has none.
	Certificates []byte
}

// ConfigData is all the data of a ConfigMap.
func ConfigData(text map[string]string, binary map[string][]byte) map[string][]byte {
	all := make(map[string][]byte, len(text)+len(binary))
	for key, value := range text {
		all[key] = []byte(value)
	}
	maps.Copy(all, binary)
	return all
}

// PrivateKey is a key that nobody may see: whatever prints it, or writes it into a log or JSON, says that it is one, and no more.
type PrivateKey []byte

const concealed = "(a private key)"

// Format is [fmt.Formatter]'s, for every verb.
func (PrivateKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, concealed) }

// MarshalText is [encoding.TextMarshaler]'s, which JSON and logs go by.
func (PrivateKey) MarshalText() ([]byte, error) { return []byte(concealed), nil }
