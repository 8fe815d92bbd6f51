package objects

import (
	"errors"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
)

// ErrNotNow says that something could not be remembered, and may be when it is tried again.
var ErrNotNow = errors.New("not now")

// CopyRecord is what was last asked of an engine about a model, as it is remembered for the next process.
type CopyRecord struct {
	Endpoint string `json:"endpoint"`
	Pool     string `json:"pool"` // "namespace/name"
	ID       string `json:"id"`
	// State is loading, loaded or unloading.
	State string `json:"state"`
	Bytes int64  `json:"bytes,omitempty"`
	// Size says where Bytes is known from.
	Size string `json:"size,omitempty"`
	// Incarnation of the engine, empty if nothing tells.
	Incarnation string    `json:"incarnation,omitempty"`
	Since       time.Time `json:"since"`
	// Object is the Model, and UID its own; empty where nobody knows them.
	Object Name   `json:"-"`
	UID    string `json:"-"`
	// Listed says that the engine lists what it has: then the record is no more than a help.
	Listed bool `json:"-"`
}

// RuntimeRecord is what a model runtime said of itself when it became ready: it cannot be asked again.
type RuntimeRecord struct {
	Endpoint     string        `json:"endpoint"`
	Incarnation  string        `json:"incarnation,omitempty"`
	Bytes        int64         `json:"bytes"`
	DefaultBytes int64         `json:"defaultBytes"`
	Loads        int           `json:"loads"`
	LoadTimeout  time.Duration `json:"loadTimeout"`
}

// ModelRecord is the status of a model.
type ModelRecord struct {
	Pool   string               `json:"pool"`
	ID     string               `json:"id"`
	Object Name                 `json:"-"` // zero for an adapter that has no Model
	UID    string               `json:"-"` // of the Model
	Status v1alpha1.ModelStatus `json:"status"`
	// Gone says that the model is no more.
	Gone bool `json:"-"`
}
