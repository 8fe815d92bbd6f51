// Package store is what control remembers for the control that leads next, or for its own next process: the models that
// clients registered, what was asked of engines, and the status of models. [Open] keeps it in a file beside a folder of
// objects; package report keeps it in the objects of an API server.
package store

import (
	"errors"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Memory is what one control has at a time. Its methods are safe for concurrent use, and write in the order of the calls. Wait
// returns when what was written will outlive the process.
type Memory interface {
	// PutModel keeps a registered model, and DeleteModel forgets it with its status.
	PutModel(m *v1alpha1.Model) (wait func() error)
	DeleteModel(m *v1alpha1.Model) (wait func() error)
	// PutVModel keeps a registered VModel, which is new or has another target, and DeleteVModel forgets it with its status.
	PutVModel(v *v1alpha1.VModel, fresh bool) (wait func() error)
	DeleteVModel(v *v1alpha1.VModel) (wait func() error)
	// PutCopy keeps what is asked of an engine about a model. With wait it returns when that will outlive the process. After
	// [ErrNotNow] it may be tried again.
	PutCopy(c Copy, wait bool) error
	// DeleteCopy forgets what was asked, when there is time. Pool is "namespace/name".
	DeleteCopy(endpoint, pool, id string)
	// PutRuntime keeps what a model runtime said of itself, and returns when that will outlive the process.
	PutRuntime(r Runtime) error
	// DeleteRuntime forgets what a model runtime said of itself, when there is time.
	DeleteRuntime(endpoint string)
	// PutStatuses keeps the status of models, when there is time.
	PutStatuses(all []Status)
	// PutVModelStatuses keeps that of VModels.
	PutVModelStatuses(all []VModelStatus)
	// PutGate says of a pod whether models load there, when there is time. Nothing of it is kept.
	PutGate(g Gate)

	// Models, Copies, Runtimes, Statuses, VModels and VModelStatuses return what was kept before this process.
	Models() ([]v1alpha1.Model, error)
	Copies() ([]Copy, error)
	Runtimes() ([]Runtime, error)
	Statuses() ([]Status, error)
	VModels() ([]v1alpha1.VModel, error)
	VModelStatuses() ([]VModelStatus, error)

	// Close writes what is still to be written, and ends. Nobody may call another method meanwhile or after.
	Close() error
}

// ErrNotNow says that something could not be kept, and may be when it is tried again.
var ErrNotNow = errors.New("not now")

// Copy is what was last asked of an engine about a model.
type Copy struct {
	Endpoint string `json:"endpoint"`
	Pool     string `json:"pool"` // "namespace/name"
	ID       string `json:"id"`
	// State is loading, loaded or unloading.
	State string `json:"state"`
	Bytes int64  `json:"bytes,omitempty"`
	// Size says where Bytes is known from.
	Size string `json:"size,omitempty"`
	// Concurrency is how many requests it takes at once; 0: as many as come.
	Concurrency int `json:"concurrency,omitempty"`
	// Incarnation of the engine, empty if nothing tells.
	Incarnation string    `json:"incarnation,omitempty"`
	Since       time.Time `json:"since"`
	// Object is the Model, and UID its own; empty where nobody knows them.
	Object objects.Name `json:"-"`
	UID    string       `json:"-"`
	// Listed says that the engine lists what it has: then the record is no more than a help.
	Listed bool `json:"-"`
}

// Runtime is what a model runtime said of itself when it became ready: it cannot be asked again.
type Runtime struct {
	Endpoint     string        `json:"endpoint"`
	Incarnation  string        `json:"incarnation,omitempty"`
	Bytes        int64         `json:"bytes"`
	DefaultBytes int64         `json:"defaultBytes"`
	Loads        int           `json:"loads"`
	LoadTimeout  time.Duration `json:"loadTimeout"`
	// Methods are the gRPC methods that it takes.
	Methods engine.Methods `json:"methods,omitempty"`
	// LimitsConcurrency says that each copy takes so many requests at once as the runtime said when it had loaded it.
	LimitsConcurrency bool `json:"limitsConcurrency,omitempty"`
}

// Status is the status of a model.
type Status struct {
	Pool   string               `json:"pool"` // "namespace/name"
	ID     string               `json:"id"`
	Object objects.Name         `json:"-"` // zero for an adapter that has no Model
	UID    string               `json:"-"` // of the Model
	Status v1alpha1.ModelStatus `json:"status"`
	// Digest is that of what failed to load, which files have no generation of; empty where nothing did, or nobody knows it.
	Digest string `json:"digest,omitempty"`
	// Gone says that the model is no more.
	Gone bool `json:"-"`
}

// VModelStatus is the status of a VModel.
type VModelStatus struct {
	Pool   string                `json:"pool"` // "namespace/name"
	ID     string                `json:"id"`
	Object objects.Name          `json:"-"`
	UID    string                `json:"-"` // of the VModel
	Status v1alpha1.VModelStatus `json:"status"`
	// Gone says that the VModel is no more.
	Gone bool `json:"-"`
}

// Gate is what is said of a pod in its condition [v1alpha1.ModelsLoad].
type Gate struct {
	Pod objects.Name
	UID string
	// Open says that models load there, Reason and Message why, or why not.
	Open            bool
	Reason, Message string
}
