// Package relaytoken is what extproc's inner server is to do with a request, and what is known of the request when it comes through Envoy once
// more: sealed in a header, so that nobody keeps anything and nobody else can write one. It is pure.
package relaytoken

import (
	"crypto/cipher"
	"encoding/base64"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/relayed"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// Kind is what is to be done with a request.
type Kind string

const (
	// Again is for the inner server: no endpoint has served the request, and it is to be decided once more.
	Again Kind = "again"
	// Several is for it too: the call is for several models, and goes to each.
	Several Kind = "several"
	// Transcode is for it too: the request of V2 by REST is for an engine that takes gRPC calls alone.
	Transcode Kind = "transcode"
	// Search is for it too: the request is for a stored response that endpoints of several pools may have, and no route reaches all of these pools.
	Search Kind = "search"
	// Manage is for it too: the call is for control.
	Manage Kind = "manage"
	// Sent is for extproc, by its inner server: the request was admitted before.
	Sent Kind = "sent"
)

// Request is one request's.
type Request struct {
	Kind Kind
	// Back is the socket at which the request's Envoy takes it once more, in the folder of extproc's.
	Back string
	// Listener and Given are where the request came in, and the pool that its route named, as the ext_proc stream said.
	Listener string
	Given    objects.Name
	// Models are what the request was admitted for: one of Again, Transcode and Sent, and all of Several, in the order of the call; none of Manage.
	// Those of Search have no name: they are the pools, in the order in which to ask them.
	Models []Model
	// All says that every one of Several is to be there: else one that there is not is left out.
	All bool
	// ID is that of the decision by which they were: of Again.
	ID string
	// Tried are the copies that did not serve the request: of Again.
	Tried []Copy
	// SentAt is when the request was sent to the first of them, in nanoseconds of Unix time: of Again.
	SentAt int64
	// Most bounds how many endpoints of a pool may be asked for a stored response: of Search, and of the Sent that follows it.
	Most int64
	// Last says that the inner server is not among the picks any more: of Sent.
	Last bool
}

// Model is a model that a request was admitted for.
type Model struct {
	// Name is what its client calls it.
	Name   string
	Target route.Target
}

// Copy is a copy of a model, at an endpoint that takes requests for it at an address.
type Copy struct {
	Endpoint string
	At       string
	Model    string // as the engine calls it
}

// Sealer seals errands and opens them. It is safe for concurrent use.
type Sealer struct{ aead cipher.AEAD }

// NewSealer returns a Sealer that seals with an AEAD that takes no nonce of its caller's ([cipher.NewGCMWithRandomNonce]).
func NewSealer(aead cipher.AEAD) *Sealer { return &Sealer{aead} }

// Seal returns an errand as a header has it.
func (s *Sealer) Seal(e Request) string {
	text, _ := proto.Marshal(messageOf(&e)) // it fails for text that is not UTF-8; then the token is of no version
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, text, nil))
}

// Open returns what was sealed; false for what was not, by this Sealer, or by a process of another release.
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
