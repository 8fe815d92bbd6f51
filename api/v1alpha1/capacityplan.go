package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CapacityPlanKind is the kind of [CapacityPlan].
const CapacityPlanKind = "CapacityPlan"

// CapacityPlan is a question: which hardware, how many replicas and what sizes of batch the models
// of a pipeline need, so that queries keep their objectives at the least cost. The command control
// plan answers it.
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=headgate
// +kubebuilder:printcolumn:name=Trace,type=string,JSONPath=.spec.trace
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type CapacityPlan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CapacityPlanSpec `json:"spec"`
}

// CapacityPlanList is what an API server lists.
//
// +kubebuilder:object:root=true
type CapacityPlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CapacityPlan `json:"items"`
}

// CapacityPlanSpec is what people write.
type CapacityPlanSpec struct {
	// Objectives are what queries are to keep, each of them.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Objectives []PlanObjective `json:"objectives"`
	// Hardware is the kinds that there are, with their prices.
	//
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Hardware []PlanHardware `json:"hardware,omitempty"`
	// HardwareFile is a file with nothing but hardware, beside the plan's: prices that several
	// plans share. What the plan says itself counts before it.
	// +kubebuilder:validation:MaxLength=4096
	HardwareFile string `json:"hardwareFile,omitempty"`
	// Stages are the models of the pipeline. A query begins at each stage to which none leads.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:XValidation:rule="self.all(s, !has(s.next) || s.next.all(e, self.exists(o, o.name == e.stage)))",message="next names a stage that does not exist"
	// +kubebuilder:validation:XValidation:rule="self.exists(s, self.all(o, !has(o.next) || o.next.all(e, e.stage != s.name)))",message="stages lead to each other in a circle: one must be the first"
	Stages []PlanStage `json:"stages"`
	// Trace is the sample of queries that is planned on: a file beside the plan's, or one that is
	// made by chance, such as gamma:rate=100,cv=4,seconds=600.
	// +kubebuilder:validation:MaxLength=4096
	Trace string `json:"trace,omitempty"`
	// Seed of all that is by chance.
	//
	// +kubebuilder:validation:Minimum=0
	Seed int64 `json:"seed,omitempty"`
}

// PlanObjective is a time that most queries must keep.
type PlanObjective struct {
	// Metric is which time of a query: Latency is until all of it has ended, TimeToFirstToken until
	// the first token of its LLM, and TimePerOutputToken is from one of those to the next. Latency
	// is the default.
	// +kubebuilder:validation:Enum=Latency;TimeToFirstToken;TimePerOutputToken
	Metric string `json:"metric,omitempty"`
	// Within is that time.
	//
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="it must be above 0"
	Within metav1.Duration `json:"within"`
	// Quantile is the share of queries that must keep it, of those that have such a time, above 0
	// and at most 1; 0.99 is the default.
	// +kubebuilder:validation:Maximum=1
	// +kubebuilder:validation:XValidation:rule="self > 0.0",message="it must be above 0"
	Quantile *float64 `json:"quantile,omitempty"`
}

// PlanHardware is a kind of hardware.
type PlanHardware struct {
	// Name is how stages name it, such as a100.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Price of one unit, such as a GPU, an hour, in any currency.
	//
	// +kubebuilder:validation:XValidation:rule="self > 0.0",message="it must be above 0"
	Price *float64 `json:"price,omitempty"`
	// MaxUnits is how many units there are for all stages together. Without it there is no bound.
	//
	// +kubebuilder:validation:Minimum=0
	MaxUnits *int32 `json:"maxUnits,omitempty"`
}

// PlanStage is one model of the pipeline.
//
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || !has(self.replicas.max) || self.replicas.max >= (has(self.replicas.min) ? self.replicas.min : 1)",message="it must be at least min",fieldPath=".replicas.max"
//
// +kubebuilder:validation:XValidation:rule="!has(self.batching) || self.batching != 'Always' || has(self.maxBatchDelay) && duration(self.maxBatchDelay) > duration('0s')",message="write maxBatchDelay: for how long a batch gathers queries",fieldPath=".batching"
type PlanStage struct {
	// Name of the stage in this plan.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Model is what it serves, for people: profiles are to be of it.
	//
	// +kubebuilder:validation:MaxLength=512
	Model string `json:"model,omitempty"`
	// PoolRef is the InferencePool that is to have it, for people.
	PoolRef *PoolReference `json:"poolRef,omitempty"`
	// Hardware is what it may run on, each with the time that the model takes there.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	Hardware []StageHardware `json:"hardware"`
	// Replicas bound how many it may have.
	Replicas *PlanReplicas `json:"replicas,omitempty"`
	// MaxBatchDelay is how long a replica lets a query wait for its batch to fill. Without it a
	// replica takes what is there.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="it must not be negative"
	MaxBatchDelay *metav1.Duration `json:"maxBatchDelay,omitempty"`
	// Batching says when queries are gathered into batches. WhenIdle is the default: a replica that
	// is free takes what is there, as Triton's do. With Always a batch is of what comes within
	// maxBatchDelay of its first query, whether or not a replica is free. It waits for one then, as
	// with MLServer.
	// +kubebuilder:validation:Enum=WhenIdle;Always
	Batching string `json:"batching,omitempty"`
	// GatewayOverhead is how long a query is on its way to the stage, through the gateway and back:
	// what one that is alone takes longer than at the server.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="it must not be negative"
	GatewayOverhead *metav1.Duration `json:"gatewayOverhead,omitempty"`
	// Startup is how long a pod takes from when it is asked for until it takes queries, for
	// configurations whose replicas change as queries come.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="it must not be negative"
	Startup *metav1.Duration `json:"startup,omitempty"`
	// Queue says where queries wait: Replica is in a queue of each replica, as extproc sends them,
	// and Central in one for all replicas, from which those take as they are free. Replica is the
	// default.
	// +kubebuilder:validation:Enum=Replica;Central
	Queue string `json:"queue,omitempty"`
	// Memory says what its replicas must hold together.
	Memory *PlanMemory `json:"memory,omitempty"`
	// Next are the stages that its queries go to once it has ended. A stage that several lead to
	// waits for those that the query has passed.
	// +kubebuilder:validation:MaxItems=16
	Next []PlanEdge `json:"next,omitempty"`
}

// PlanEdge leads from a stage to a later one.
type PlanEdge struct {
	// Stage is where it leads.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Stage string `json:"stage"`
	// Share of the queries that take it, by chance; 1 is the default.
	//
	// +kubebuilder:validation:Maximum=1
	// +kubebuilder:validation:XValidation:rule="self > 0.0",message="it must be above 0"
	Share *float64 `json:"share,omitempty"`
	// Choice names a decision: of the edges of one stage with the same choice a query takes one at
	// most.
	// +kubebuilder:validation:MaxLength=63
	Choice string `json:"choice,omitempty"`
}

// PlanReplicas bound a number of replicas.
type PlanReplicas struct {
	// Min is the least, at least 1, which is the default.
	//
	// +kubebuilder:validation:Minimum=1
	Min *int32 `json:"min,omitempty"`
	// Max is the most. Without it there is no bound.
	//
	// +kubebuilder:validation:Minimum=1
	Max *int32 `json:"max,omitempty"`
}

// PlanMemory is what replicas must hold: all models, or those that were used lately.
//
// +kubebuilder:validation:XValidation:rule="has(self.models) != has(self.minEvictionAge)",message="write one of models and minEvictionAge"
// +kubebuilder:validation:XValidation:rule="!has(self.minEvictionAge) || has(self.modelSize)",message="write how large a model is, in modelSize"
type PlanMemory struct {
	// PerReplica is how much one replica has for models.
	PerReplica resource.Quantity `json:"perReplica"`
	// Models is how large all are together that must be loaded at once.
	Models *resource.Quantity `json:"models,omitempty"`
	// ModelSize is how large one is, in the mean, and MinEvictionAge for how long a model must not
	// have been used before it makes place for another: the trace says then which models its
	// queries are for.
	ModelSize      *resource.Quantity `json:"modelSize,omitempty"`
	MinEvictionAge *metav1.Duration   `json:"minEvictionAge,omitempty"`
}

// StageHardware is a kind of hardware that a stage may run on.
//
// +kubebuilder:validation:XValidation:rule="(has(self.file) ? 1 : 0) + (has(self.latencies) ? 1 : 0) + (has(self.engine) ? 1 : 0) == 1",message="write one of file, latencies and engine"
type StageHardware struct {
	// Name is that of the kind.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Units that a replica takes of it, such as GPUs; 1 is the default.
	//
	// +kubebuilder:validation:Minimum=1
	Units *int32 `json:"units,omitempty"`
	// Price of a replica an hour. Without it it is that of its units, or else that in its profile.
	//
	// +kubebuilder:validation:XValidation:rule="self > 0.0",message="it must be above 0"
	Price *float64 `json:"price,omitempty"`
	// File is the file of the model's profile there, beside the plan's: latency by batch, or an
	// engine of an LLM. The command control profile measures one.
	// +kubebuilder:validation:MaxLength=4096
	File string `json:"file,omitempty"`
	// Latencies by batch, in the place of a file.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Latencies []BatchLatency `json:"latencies,omitempty"`
	// Engine of an LLM, in the place of a file.
	Engine *EngineProfile `json:"engine,omitempty"`
	// BatchSizes are the sizes that may be set; without it those of the profile. Of an engine it is
	// how many requests it may run at once.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Minimum=1
	BatchSizes []int32 `json:"batchSizes,omitempty"`
}

// BatchLatency is how long a batch of a size takes.
type BatchLatency struct {
	// Size is how many queries it has.
	//
	// +kubebuilder:validation:Minimum=1
	Size int32 `json:"size"`
	// Mean is how long it takes.
	//
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="a batch takes some time"
	Mean metav1.Duration `json:"mean"`
}
