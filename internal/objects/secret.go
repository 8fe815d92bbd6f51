package objects

import (
	"fmt"
	"io"
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

// Keys of a Secret's data with a certificate.
const (
	CertificateKey = "tls.crt"
	PrivateKeyKey  = "tls.key"
)

// PrivateKey is a key that nobody may see: whatever prints it, or writes it into a log or JSON, says that it is one, and no more.
type PrivateKey []byte

const concealed = "(a private key)"

// Format is [fmt.Formatter]'s, for every verb.
func (PrivateKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, concealed) }

// MarshalText is [encoding.TextMarshaler]'s, which JSON and logs go by.
func (PrivateKey) MarshalText() ([]byte, error) { return []byte(concealed), nil }
