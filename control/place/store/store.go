// Package store stores state for the next leader, or for control's next process: registered models,
// copies at engines, and statuses of models. [Open] uses a file beside a folder of objects; package
// statuswriter uses the objects of an API server.
package store

import (
	"errors"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Memory is the storage of one control. Its methods are safe for concurrent use, and write in the
// order of the calls. Wait returns when the write will survive the process.
type Memory interface {
	// PutModel stores a registered model. DeleteModel deletes it and its status.
	PutModel(m *v1alpha1.Model) (wait func() error)
	DeleteModel(m *v1alpha1.Model) (wait func() error)
	// PutVModel stores a registered VModel, which is new (fresh) or has a new target. DeleteVModel
	// deletes it and its status.
	PutVModel(v *v1alpha1.VModel, fresh bool) (wait func() error)
	DeleteVModel(v *v1alpha1.VModel) (wait func() error)
	// PutCopy stores a copy. With wait it returns when the write will survive the process. It may
	// be retried after [ErrNotNow].
	PutCopy(c Copy, wait bool) error
	// DeleteCopy queues the deletion of a copy. Pool is "namespace/name".
	DeleteCopy(endpoint, pool, id string)
	// PutRuntime stores the state of a model runtime, and returns when it will survive the process.
	PutRuntime(r Runtime) error
	// DeleteRuntime queues the deletion of a runtime.
	DeleteRuntime(endpoint string)
	// PutStatuses queues statuses of models.
	PutStatuses(all []Status)
	// PutVModelStatuses queues statuses of VModels.
	PutVModelStatuses(all []VModelStatus)
	// PutGate queues the condition of a pod that says whether models load there. It is not stored.
	PutGate(g Gate)

	// Models, Copies, Runtimes, Statuses, VModels and VModelStatuses return what was stored before
	// this process.
	Models() ([]v1alpha1.Model, error)
	Copies() ([]Copy, error)
	Runtimes() ([]Runtime, error)
	Statuses() ([]Status, error)
	VModels() ([]v1alpha1.VModel, error)
	VModelStatuses() ([]VModelStatus, error)

	// Close writes what is queued, and ends. No other method may be called then or later.
	Close() error
}

// ErrNotNow reports that a write failed and may be retried.
var ErrNotNow = errors.New("not now")

// Copy is the last requested state of a model at an engine.
type Copy struct {
	Endpoint string `json:"endpoint"`
	Pool     string `json:"pool"` // "namespace/name"
	ID       string `json:"id"`
	// State is loading, loaded or unloading.
	State string `json:"state"`
	Bytes int64  `json:"bytes,omitempty"`
	// Size is the source of Bytes.
	Size string `json:"size,omitempty"`
	// Concurrency is the number of concurrent requests that it accepts; 0 for no limit.
	Concurrency int `json:"concurrency,omitempty"`
	// Incarnation of the engine, empty if unknown.
	Incarnation string    `json:"incarnation,omitempty"`
	Since       time.Time `json:"since"`
	// Object is the Model, and UID its UID; empty if unknown.
	Object objects.Name `json:"-"`
	UID    string       `json:"-"`
	// Listed reports that the engine lists its models, so that the record is only a hint.
	Listed bool `json:"-"`
}

// Runtime is what a model runtime reported when it became ready. It reports this only once.
type Runtime struct {
	Endpoint     string        `json:"endpoint"`
	Incarnation  string        `json:"incarnation,omitempty"`
	Bytes        int64         `json:"bytes"`
	DefaultBytes int64         `json:"defaultBytes"`
	Loads        int           `json:"loads"`
	LoadTimeout  time.Duration `json:"loadTimeout"`
	// Methods are the gRPC methods that it serves.
	Methods engine.Methods `json:"methods,omitempty"`
	// LimitsConcurrency reports that each copy accepts as many concurrent requests as the runtime
	// reported after the load.
	LimitsConcurrency bool `json:"limitsConcurrency,omitempty"`
}

// Status is the status of a model.
type Status struct {
	Pool   string               `json:"pool"` // "namespace/name"
	ID     string               `json:"id"`
	Object objects.Name         `json:"-"` // zero for an adapter without a Model
	UID    string               `json:"-"` // of the Model
	Status v1alpha1.ModelStatus `json:"status"`
	// Digest is that of what failed to load, since files have no generation; empty if nothing
	// failed, or unknown.
	Digest string `json:"digest,omitempty"`
	// Gone reports that the model was deleted.
	Gone bool `json:"-"`
}

// VModelStatus is the status of a VModel.
type VModelStatus struct {
	Pool   string                `json:"pool"` // "namespace/name"
	ID     string                `json:"id"`
	Object objects.Name          `json:"-"`
	UID    string                `json:"-"` // of the VModel
	Status v1alpha1.VModelStatus `json:"status"`
	// Gone reports that the VModel was deleted.
	Gone bool `json:"-"`
}

// Gate is the condition [v1alpha1.ModelsLoad] of a pod.
type Gate struct {
	Pod objects.Name
	UID string
	// Open reports that models load there. Reason and Message say why, or why not.
	Open            bool
	Reason, Message string
}
