// Package relaytoken defines the token of a request that passes through extproc's relay. The token
// contains the relay's task, and how extproc must treat the request when it passes through Envoy
// again. The token is an encrypted header, so neither the relay nor extproc stores state, and
// clients cannot forge a token. The package does no I/O.
package relaytoken

import (
	"crypto/cipher"
	"encoding/base64"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/relayed"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// Kind is the relay's task.
type Kind string

const (
	// Again is for the relay: send the request through Envoy again, since no endpoint has served
	// it.
	Again Kind = "again"
	// Several is for the relay: send the call to each of several models.
	Several Kind = "several"
	// Transcode is for the relay: convert the V2 REST request to a gRPC call, because the engine
	// accepts only gRPC.
	Transcode Kind = "transcode"
	// Search is for the relay: ask several pools for a stored response, because no single route
	// leads to all of them.
	Search Kind = "search"
	// Manage is for the relay: forward the call to control.
	Manage Kind = "manage"
	// Sent is for extproc, from the relay: the request was admitted before.
	Sent Kind = "sent"
)

// Request is the content of a token.
type Request struct {
	Kind Kind
	// Back is the socket at which the request's Envoy accepts requests from the relay. It is
	// relative to the folder of extproc's socket.
	Back string
	// Listener is the listener that received the request. Given is the pool that its route named.
	Listener string
	Given    objects.Name
	// Models are the models for which the request was admitted: one model for Again, Transcode and
	// Sent, all models in order for Several, and none for Manage. For Search they have no names,
	// only pools, in the order in which to ask the pools.
	Models []Model
	// All means that the call of Several fails if a model is unknown. Otherwise unknown models are
	// skipped.
	All bool
	// ID identifies the decision that chose Tried. It is set only for Again.
	ID string
	// Tried are the copies that did not serve the request. They are set only for Again.
	Tried []Copy
	// SentAt is when the request was sent to the first copy in Tried, in Unix nanoseconds.
	SentAt int64
	// Most limits how many endpoints of a pool are asked for a stored response. It is set for
	// Search, and for the Sent of each pool.
	Most int64
	// Last means that the request must not go to the relay again. It is set only for Sent.
	Last bool
	// Fallback is the name for clients of the fallback to which the request was sent. It is empty
	// unless the request is at its fallback.
	Fallback string
}

// Model is a model for which a request was admitted.
type Model struct {
	// Name is the client's name of the model.
	Name string
	// Target is where the request was sent. The token does not contain its Sharing.
	Target route.Target
}

// Copy is a copy of a model: its endpoint, and the address at which that endpoint accepts requests.
type Copy struct {
	Endpoint string
	At       string
	Model    string // engine's name of the model
}

// Sealer encrypts and decrypts tokens. It is safe for concurrent use.
type Sealer struct{ aead cipher.AEAD }

// NewSealer returns a Sealer. The AEAD must choose its own nonces ([cipher.NewGCMWithRandomNonce]).
func NewSealer(aead cipher.AEAD) *Sealer { return &Sealer{aead} }

// Seal returns the encrypted token as a header value.
func (s *Sealer) Seal(e Request) string {
	text, _ := proto.Marshal(messageOf(&e)) // an error means text that is not UTF-8; Open then returns false
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, text, nil))
}

// Open decrypts a token. It returns false if the token has another key or another version of the
// format.
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
