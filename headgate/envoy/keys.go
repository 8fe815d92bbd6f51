package envoy

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/headgate/headgate/api/wire"
)

// key is the API key of a client.
type key struct{ client, secret string }

// clientName is what a client's name may be: it goes into a header and into logs.
var clientName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// readKeys reads a file with a line NAME=KEY for each client. Empty lines and lines that begin with
// # are comments. Several keys may have the same name. Errors contain the line's number and no key.
func readKeys(name string, text []byte) ([]key, error) {
	var keys []key
	lines := make(map[string]int)
	number := 0
	for raw := range bytes.Lines(text) {
		number++
		line := strings.TrimSpace(string(raw))
		if line == "" || line[0] == '#' {
			continue
		}
		fault := func(what string) error { return fmt.Errorf("%s:%d: %s", name, number, what) }
		client, secret, ok := strings.Cut(line, "=")
		client, secret = strings.TrimSpace(client), strings.TrimSpace(secret)
		switch {
		case !ok:
			return nil, fault("the line must be NAME=KEY")
		case !clientName.MatchString(client):
			return nil, fault("the name before = must have 1 to 64 letters, digits, dots, dashes or underscores, and begin with a letter or digit")
		case secret == "":
			return nil, fault("there is no key after =")
		case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
			return nil, fault("the key has a character that a header cannot have; use printable ASCII without spaces")
		case len(secret) > maxKey:
			return nil, fault(fmt.Sprintf("the key has more than %d characters", maxKey))
		}
		if before := lines[secret]; before != 0 {
			return nil, fault(fmt.Sprintf("the key is the same as in line %d", before))
		}
		lines[secret] = number
		keys = append(keys, key{client, secret})
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s: it has no line NAME=KEY, so every request would be rejected", name)
	}
	return keys, nil
}

// maxKey is far below Envoy's limit for headers.
const maxKey = 4096

// keysResource returns the file from which Envoy reads the configuration of its filter for API
// keys. It hides the key from everything behind the filter.
func keysResource(keys []key) ([]byte, error) {
	credentials := make([]any, len(keys))
	for i, k := range keys {
		credentials[i] = node{"key": k.secret, "client": k.client}
	}
	return discovery(node{
		"@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
		"name":  keysName,
		"typed_config": node{
			"@type":       keyFilterType,
			"credentials": credentials,
			"key_sources": []any{node{"header": "authorization"}, node{"header": "x-api-key"}, node{"header": "api-key"}},
			"forwarding":  node{"header": wire.ClientHeader, "hide_credentials": true},
		},
	})
}

// secretResource returns the file from which Envoy reads its certificate. It returns an error if
// the key does not belong to the certificate, or if Envoy would reject it.
func secretResource(cert, private []byte) ([]byte, error) {
	pair, err := tls.X509KeyPair(cert, private)
	if err != nil {
		return nil, err
	}
	if err := accepted(pair.Leaf.PublicKey); err != nil {
		return nil, err
	}
	return discovery(node{
		"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
		"name":  secretName,
		"tls_certificate": node{
			"certificate_chain": node{"inline_string": string(cert)},
			"private_key":       node{"inline_string": string(private)},
		},
	})
}

// minRSA is the size in bits of the smallest RSA key that Envoy accepts.
const minRSA = 2048

// accepted returns an error if Envoy rejects certificates with this key, although Go accepts them.
func accepted(public any) error {
	switch k := public.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSA {
			return fmt.Errorf("the RSA key has %d bits, and Envoy needs %d: make a new key and certificate", bits, minRSA)
		}
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P224() {
			return errors.New("the key is on the curve P-224, and Envoy needs P-256, P-384 or P-521: make a new key and certificate")
		}
	}
	return nil
}

// discovery returns a file of Envoy's discovery by files, with one resource.
func discovery(resource node) ([]byte, error) {
	text, err := json.Marshal(resource)
	if err != nil {
		return nil, err
	}
	version := sha256.Sum256(text)
	return json.Marshal(node{"version_info": hex.EncodeToString(version[:8]), "resources": []any{json.RawMessage(text)}})
}
