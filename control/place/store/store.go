// Package store stores state for the next leader, or for control's next process: registered models,
// copies at engines, and statuses of models. If objects are in a folder, [Open] opens a file for
// the state. If they are in an API server, package statuswriter stores the state in them.
package store

import (
	"errors"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Memory is the storage of one control. Its methods are safe for concurrent use, and write in the
// order of the calls. A returned function wait returns when the write will survive the end of the
// process.
type Memory interface {
	// PutModel stores a registered model. DeleteModel deletes the model and its status.
	PutModel(m *v1alpha1.Model) (wait func() error)
	DeleteModel(m *v1alpha1.Model) (wait func() error)
	// PutVModel stores a registered VModel. If fresh, the VModel is new; otherwise its target has
	// changed. DeleteVModel deletes the VModel and its status.
	PutVModel(v *v1alpha1.VModel, fresh bool) (wait func() error)
	DeleteVModel(v *v1alpha1.VModel) (wait func() error)
	// PutCopy stores a copy. With wait, it returns when the write will survive the end of the
	// process. The call may be repeated after [ErrNotNow].
	PutCopy(c Copy, wait bool) error
	// DeleteCopy queues the deletion of a copy. Pool is "namespace/name".
	DeleteCopy(endpoint, pool, id string)
	// PutRuntime stores the state of a model runtime, and returns when the write will survive the
	// end of the process.
	PutRuntime(r Runtime) error
	// DeleteRuntime queues the deletion of a runtime.
	DeleteRuntime(endpoint string)
	// PutStatuses queues statuses of models.
	PutStatuses(all []Status)
	// PutVModelStatuses queues statuses of VModels.
	PutVModelStatuses(all []VModelStatus)
	// PutGate queues a write of the pod's condition that reports whether models load there. No
	// method of Memory reads the condition.
	PutGate(g Gate)
	// PutDrain stores that an operator drains an endpoint, and returns when the write will survive
	// the end of the process. In a cluster it stores nothing. DeleteDrain queues the deletion.
	PutDrain(d Drain) error
	DeleteDrain(endpoint string)

	// Models, Copies, Runtimes, Statuses, VModels and VModelStatuses return what earlier processes
	// stored.
	Models() ([]v1alpha1.Model, error)
	Copies() ([]Copy, error)
	Runtimes() ([]Runtime, error)
	Statuses() ([]Status, error)
	VModels() ([]v1alpha1.VModel, error)
	VModelStatuses() ([]VModelStatus, error)
	Drains() ([]Drain, error)

	// Close writes what is queued, and ends. No other method may be called during or after it.
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
	// Size is the source of the value in Bytes, such as "measured".
	Size string `json:"size,omitempty"`
	// Concurrency is the number of concurrent requests that the copy accepts; 0 for no limit.
	Concurrency int `json:"concurrency,omitempty"`
	// Incarnation is that of the engine; empty if unknown.
	Incarnation string    `json:"incarnation,omitempty"`
	Since       time.Time `json:"since"`
	// Object is the name of the Model object, and UID is its UID; both are empty if unknown.
	Object objects.Name `json:"-"`
	UID    string       `json:"-"`
	// Listed reports that the engine lists its models, so that this record is only a hint.
	Listed bool `json:"-"`
}

// Runtime is what a model runtime reported when it became ready. A runtime reports this only then.
type Runtime struct {
	Endpoint     string        `json:"endpoint"`
	Incarnation  string        `json:"incarnation,omitempty"`
	Bytes        int64         `json:"bytes"`
	DefaultBytes int64         `json:"defaultBytes"`
	Loads        int           `json:"loads"`
	LoadTimeout  time.Duration `json:"loadTimeout"`
	// Methods are the gRPC methods that the runtime serves.
	Methods engine.Methods `json:"methods,omitempty"`
	// LimitsConcurrency is true if the runtime reports, after each load, a concurrency limit of the
	// copy.
	LimitsConcurrency bool `json:"limitsConcurrency,omitempty"`
}

// Status is the status of a model.
type Status struct {
	Pool   string               `json:"pool"` // "namespace/name"
	ID     string               `json:"id"`
	Object objects.Name         `json:"-"` // name of the Model object; zero for an adapter without one
	UID    string               `json:"-"` // UID of the Model object
	Status v1alpha1.ModelStatus `json:"status"`
	// Digest identifies the content of the model that failed to load, since objects in files have
	// no generation. It is empty if no load failed, or if the content is unknown.
	Digest string `json:"digest,omitempty"`
	// Gone reports that the model was deleted.
	Gone bool `json:"-"`
}

// VModelStatus is the status of a VModel.
type VModelStatus struct {
	Pool   string                `json:"pool"` // "namespace/name"
	ID     string                `json:"id"`
	Object objects.Name          `json:"-"`
	UID    string                `json:"-"` // UID of the VModel object
	Status v1alpha1.VModelStatus `json:"status"`
	// Gone reports that the VModel was deleted.
	Gone bool `json:"-"`
}

// Gate is the condition [v1alpha1.ModelsLoad] of a pod.
type Gate struct {
	Pod objects.Name
	UID string
	// Open reports that models load on the pod. Reason and Message explain why they do or do not.
	Open            bool
	Reason, Message string
}

// Drain is an endpoint that an operator drains.
type Drain struct {
	Endpoint string `json:"endpoint"`
	// Until is when the move of its models ends even if some have not moved.
	Until time.Time `json:"until"`
}
