// Package relaytoken has the token of a request that goes through extproc's relay: what the relay
// is to do, and how extproc is to treat the request when it comes through Envoy again. The token is
// encrypted in a header. So neither program stores anything, and nobody else can make a token. The
// package is pure.
package relaytoken

import (
	"crypto/cipher"
	"encoding/base64"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/relayed"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// Kind is the task of the relay.
type Kind string

const (
	// Again is for the relay: no endpoint has served the request; have it decided again.
	Again Kind = "again"
	// Several is for the relay: send the call to each of several models.
	Several Kind = "several"
	// Transcode is for the relay: make a gRPC call of the V2 REST request, because the engine takes
	// only calls.
	Transcode Kind = "transcode"
	// Search is for the relay: ask several pools for a stored response, because no route reaches
	// all of them.
	Search Kind = "search"
	// Manage is for the relay: forward the call to control.
	Manage Kind = "manage"
	// Sent is for extproc, from the relay: the request was admitted before.
	Sent Kind = "sent"
)

// Request is the content of a token.
type Request struct {
	Kind Kind
	// Back is the socket at which the request's Envoy takes requests from the relay, in the folder
	// of extproc's socket.
	Back string
	// Listener and Given are the listener of the request and the pool that its route named.
	Listener string
	Given    objects.Name
	// Models are the models for which the request was admitted: one for Again, Transcode and Sent,
	// all in order for Several, none for Manage. For Search they have no name: they are the pools,
	// in the order in which to ask them.
	Models []Model
	// All means that each model of Several must exist. Otherwise unknown models are skipped.
	All bool
	// ID is the decision that sent the request to Tried. Only Again has one.
	ID string
	// Tried are the copies that did not serve the request. Only Again has them.
	Tried []Copy
	// SentAt is when the request was sent to the first of Tried, in nanoseconds of Unix time.
	SentAt int64
	// Most bounds how many endpoints of a pool are asked for a stored response. Search has it, and
	// the Sent that follows.
	Most int64
	// Last means that the relay must not be among the picks again. Only Sent has it.
	Last bool
}

// Model is a model for which a request was admitted.
type Model struct {
	// Name is the client's name of the model.
	Name   string
	Target route.Target
}

// Copy is a copy of a model: its endpoint, and the address at which that takes requests.
type Copy struct {
	Endpoint string
	At       string
	Model    string // the engine's name of the model
}

// Sealer encrypts and decrypts tokens. It is safe for concurrent use.
type Sealer struct{ aead cipher.AEAD }

// NewSealer returns a Sealer. The AEAD must choose its own nonces ([cipher.NewGCMWithRandomNonce]).
func NewSealer(aead cipher.AEAD) *Sealer { return &Sealer{aead} }

// Seal returns the token as the value of a header.
func (s *Sealer) Seal(e Request) string {
	text, _ := proto.Marshal(messageOf(&e)) // it fails if text is not UTF-8; then no version is written and Open returns false
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, text, nil))
}

// Open decrypts a token. It returns false if another key or another version of the format made the
// token.
func (s *Sealer) Open(header string) (e Request, ok bool) {
	sealed, err := base64.RawURLEncoding.DecodeString(header)
	if err != nil {
		return e, false
	}
	text, err := s.aead.Open(nil, nil, sealed, nil)
	if err != nil {
		return e, false
	}
	m := new(relayed.Request)
	if proto.Unmarshal(text, m) != nil || m.Version != version {
		return e, false
	}
	return requestOf(m), true
}
