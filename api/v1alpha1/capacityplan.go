package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CapacityPlanKind is the kind of [CapacityPlan].
const CapacityPlanKind = "CapacityPlan"

// CapacityPlan describes a pipeline of models, its traffic and its latency objectives. The command
// `headgate plan` computes the cheapest hardware, replica counts and batch sizes that meet the
// objectives.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=cplan,categories=headgate
// +kubebuilder:printcolumn:name=Trace,type=string,JSONPath=.spec.trace
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type CapacityPlan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CapacityPlanSpec `json:"spec"`
}

// CapacityPlanList is a list of CapacityPlans.
// +kubebuilder:object:root=true
type CapacityPlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CapacityPlan `json:"items"`
}

// CapacityPlanSpec is the pipeline, its traffic and its objectives.
type CapacityPlanSpec struct {
	// Objectives are the latency objectives of queries, 1 to 8. A plan must meet all of them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Objectives []PlanObjective `json:"objectives"`
	// Hardware lists the kinds of hardware and their prices.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Hardware []PlanHardware `json:"hardware,omitempty"`
	// HardwareFile is a YAML file that contains only hardware, so that several plans can share
	// prices. Its path is relative to the plan's file. Entries in hardware override those of the
	// file.
	// +kubebuilder:validation:MaxLength=4096
	HardwareFile string `json:"hardwareFile,omitempty"`
	// Stages are the models of the pipeline, 1 to 32. A query starts at every stage that no other
	// stage names in next.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:XValidation:rule="self.all(s, !has(s.next) || s.next.all(e, self.exists(o, o.name == e.stage)))",message="next names a stage that does not exist"
	// +kubebuilder:validation:XValidation:rule="self.exists(s, self.all(o, !has(o.next) || o.next.all(e, e.stage != s.name)))",message="stages form a cycle: one must be the first"
	Stages []PlanStage `json:"stages"`
	// Trace is the sample of queries to plan for: a file, relative to the plan's file, or a
	// generated trace, such as gamma:rate=100,cv=4,seconds=600.
	// +kubebuilder:validation:MaxLength=4096
	Trace string `json:"trace,omitempty"`
	// Seed is the seed of all random numbers. The default is 0.
	// +kubebuilder:validation:Minimum=0
	Seed int64 `json:"seed,omitempty"`
}

// PlanObjective is an upper bound on a latency quantile.
type PlanObjective struct {
	// Metric is the latency to bound. Latency, the default, is the time from the start to the end
	// of a query. TimeToFirstToken ends at the first token of the query's LLM. TimePerOutputToken
	// is the mean time between output tokens.
	// +kubebuilder:validation:Enum=Latency;TimeToFirstToken;TimePerOutputToken
	Metric string `json:"metric,omitempty"`
	// Within is the upper bound, above 0, such as 300ms.
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="it must be above 0"
	Within metav1.Duration `json:"within"`
	// Quantile is the share of queries that must stay within the bound, above 0 and at most 1.
	// Queries without the metric do not count. The default is 0.99.
	// +kubebuilder:validation:Maximum=1
	// +kubebuilder:validation:XValidation:rule="self > 0.0",message="it must be above 0"
	Quantile *float64 `json:"quantile,omitempty"`
}

// PlanHardware is a kind of hardware, such as a GPU model.
type PlanHardware struct {
	// Name is the name that stages use for this kind, such as a100.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Price is the price of one unit, such as a GPU, per hour, above 0, in any currency.
	// +kubebuilder:validation:XValidation:rule="self > 0.0",message="it must be above 0"
	Price *float64 `json:"price,omitempty"`
	// MaxUnits is the number of units available to all stages together. The default is unlimited.
	// +kubebuilder:validation:Minimum=0
	MaxUnits *int32 `json:"maxUnits,omitempty"`
}

// PlanStage is one model of the pipeline.
//
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || !has(self.replicas.max) || self.replicas.max >= (has(self.replicas.min) ? self.replicas.min : 1)",message="it must be at least min",fieldPath=".replicas.max"
//
// +kubebuilder:validation:XValidation:rule="!has(self.batching) || self.batching != 'Always' || has(self.maxBatchDelay) && duration(self.maxBatchDelay) > duration('0s')",message="set maxBatchDelay: how long a batch waits for more queries",fieldPath=".batching"
type PlanStage struct {
	// Name is the name of the stage, unique in the plan.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Model is the model that the stage serves. It is a note for readers: headgate plan does not
	// use it. +kubebuilder:validation:MaxLength=512
	Model string `json:"model,omitempty"`
	// PoolRef is the InferencePool that serves the stage. It is a note for readers: headgate plan
	// does not use it.
	PoolRef *PoolReference `json:"poolRef,omitempty"`
	// Hardware lists the kinds of hardware that the stage may use, with the model's latency on
	// each.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	Hardware []StageHardware `json:"hardware"`
	// Replicas bounds the number of replicas. The default is at least 1, without an upper bound.
	Replicas *PlanReplicas `json:"replicas,omitempty"`
	// MaxBatchDelay is the longest time that a query waits for its batch to fill. The default is
	// 0s: a replica starts a batch with the queries that are queued.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="it must not be negative"
	MaxBatchDelay *metav1.Duration `json:"maxBatchDelay,omitempty"`
	// Batching says when a batch is formed. WhenIdle, the default: a replica that becomes idle
	// takes the queued queries, as in Triton. Always: a batch consists of the queries that arrive
	// within maxBatchDelay of its first query, even while all replicas are busy. The complete batch
	// then waits for a replica, as in MLServer.
	// +kubebuilder:validation:Enum=WhenIdle;Always
	Batching string `json:"batching,omitempty"`
	// GatewayOverhead is the time that the gateway adds to a query of this stage, there and back:
	// the latency of a single query through the gateway, minus its latency at the server. The
	// default is 0s.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="it must not be negative"
	GatewayOverhead *metav1.Duration `json:"gatewayOverhead,omitempty"`
	// Startup is the time from the creation of a pod until it serves queries. It matters only to
	// plans with a changing number of replicas. The default is 0s.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="it must not be negative"
	Startup *metav1.Duration `json:"startup,omitempty"`
	// Queue says where queries wait. Replica, the default: each replica has its own queue, as
	// behind extproc. Central: all replicas take queries from one queue.
	// +kubebuilder:validation:Enum=Replica;Central
	Queue string `json:"queue,omitempty"`
	// Memory bounds the number of replicas from below by the memory that the stage's models need.
	Memory *PlanMemory `json:"memory,omitempty"`
	// Next lists the stages that follow this one. A query starts at such a stage when it has ended
	// at all stages on its path that lead there.
	// +kubebuilder:validation:MaxItems=16
	Next []PlanEdge `json:"next,omitempty"`
}

// PlanEdge leads from a stage to a later stage.
type PlanEdge struct {
	// Stage is the name of the later stage.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Stage string `json:"stage"`
	// Share is the probability that a query takes this edge, above 0 and at most 1. The default is
	// 1.
	// +kubebuilder:validation:Maximum=1
	// +kubebuilder:validation:XValidation:rule="self > 0.0",message="it must be above 0"
	Share *float64 `json:"share,omitempty"`
	// Choice groups edges of a stage: a query takes at most one of the edges with the same choice.
	// Edges without a choice are independent.
	// +kubebuilder:validation:MaxLength=63
	Choice string `json:"choice,omitempty"`
}

// PlanReplicas bounds a number of replicas.
type PlanReplicas struct {
	// Min is the minimum, at least 1. The default is 1.
	// +kubebuilder:validation:Minimum=1
	Min *int32 `json:"min,omitempty"`
	// Max is the maximum, at least min. The default is unlimited.
	// +kubebuilder:validation:Minimum=1
	Max *int32 `json:"max,omitempty"`
}

// PlanMemory is the memory that a stage's models need: that of all models, or that of the recently
// used ones.
// +kubebuilder:validation:XValidation:rule="has(self.models) != has(self.minEvictionAge)",message="set one of models and minEvictionAge"
// +kubebuilder:validation:XValidation:rule="!has(self.minEvictionAge) || has(self.modelSize)",message="set modelSize, the mean size of a model"
type PlanMemory struct {
	// PerReplica is the memory that each replica has for models, such as 40Gi.
	PerReplica resource.Quantity `json:"perReplica"`
	// Models is the total memory of all models that must be loaded at the same time. Set either
	// models or minEvictionAge.
	Models *resource.Quantity `json:"models,omitempty"`
	// ModelSize is the mean memory of a model, and MinEvictionAge the time that a model must stay
	// unused before another model may replace it. They need a trace that names the model of each
	// query.
	ModelSize      *resource.Quantity `json:"modelSize,omitempty"`
	MinEvictionAge *metav1.Duration   `json:"minEvictionAge,omitempty"`
}

// StageHardware is a kind of hardware that a stage may use, and the model's latency on it. The
// latency comes from one of file, latencies and engine.
// +kubebuilder:validation:XValidation:rule="(has(self.file) ? 1 : 0) + (has(self.latencies) ? 1 : 0) + (has(self.engine) ? 1 : 0) == 1",message="set one of file, latencies and engine"
type StageHardware struct {
	// Name is the name of the kind in the plan's hardware, such as a100.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Units is the number of units, such as GPUs, that one replica needs. The default is 1.
	// +kubebuilder:validation:Minimum=1
	Units *int32 `json:"units,omitempty"`
	// Price is the price of one replica per hour, above 0. The default is the price of its units,
	// else the price in its profile.
	// +kubebuilder:validation:XValidation:rule="self > 0.0",message="it must be above 0"
	Price *float64 `json:"price,omitempty"`
	// File is the YAML file with the model's profile on this hardware, as headgate profile writes
	// it: latency by batch size, or the profile of an LLM engine. Its path is relative to the
	// plan's file.
	// +kubebuilder:validation:MaxLength=4096
	File string `json:"file,omitempty"`
	// Latencies are the mean latencies by batch size, instead of a file.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Latencies []BatchLatency `json:"latencies,omitempty"`
	// Engine is the profile of an LLM engine, instead of a file.
	Engine *EngineProfile `json:"engine,omitempty"`
	// BatchSizes are the batch sizes that the plan may choose. The default is the sizes in the
	// profile. For an LLM engine, the batch size is its maximum number of concurrent requests.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Minimum=1
	BatchSizes []int32 `json:"batchSizes,omitempty"`
}

// BatchLatency is the latency of a batch of one size.
type BatchLatency struct {
	// Size is the number of queries in the batch, at least 1.
	// +kubebuilder:validation:Minimum=1
	Size int32 `json:"size"`
	// Mean is the mean time to compute the batch, above 0.
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="a batch takes some time"
	Mean metav1.Duration `json:"mean"`
}
