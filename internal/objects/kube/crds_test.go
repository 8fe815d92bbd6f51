package kube_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/test/apiserver"
)

// cluster is an API server with our CRDs.
type cluster struct{ apiserver.Cluster }

func newCluster(t testing.TB, flags ...string) cluster {
	t.Helper()
	return cluster{apiserver.RunCluster(t, flags...)}
}

// verdicts returns the errors of the API server and of a folder for an object; nil if accepted.
func (c cluster) verdicts(text string) (server, folder error) {
	c.Helper()
	o := apiserver.ReadObjects(c, text)[0]
	_, server = c.At(o).Create(c.Context(), o, metav1.CreateOptions{
		DryRun:          []string{metav1.DryRunAll},
		FieldValidation: metav1.FieldValidationStrict,
	})
	at := c.TempDir()
	if err := os.WriteFile(filepath.Join(at, "o.yaml"), []byte(text), 0o600); err != nil {
		c.Fatal(err)
	}
	_, folder = dir.Read(at, slices.Concat(withNetwork, kinds.Plans()))
	return server, folder
}

const ours = "apiVersion: inference.x-k8s.io/v1alpha1\n"

func route(spec string) string {
	return ours + "kind: LLMRoute\nmetadata: {name: r}\nspec: " + spec
}

func model(spec string) string { return ours + "kind: Model\nmetadata: {name: m}\nspec: " + spec }

func vmodel(spec string) string { return ours + "kind: VModel\nmetadata: {name: v}\nspec: " + spec }
func settings(spec string) string {
	return ours + "kind: PoolSettings\nmetadata: {name: s}\nspec: " + spec
}

func list(spec string) string {
	return ours + "kind: EndpointList\nmetadata: {name: l}\nspec: " + spec
}

func gatewaySettings(spec string) string {
	return ours + "kind: GatewaySettings\nmetadata: {name: g}\nspec: " + spec
}

func inferencePool(spec string) string {
	return "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p}\nspec: " + spec
}

func capacityPlan(spec string) string {
	return ours + "kind: CapacityPlan\nmetadata: {name: c}\nspec: " + spec
}

// planOf is a plan of one stage with hardware and more fields.
func planOf(more, hardware string) string {
	return capacityPlan(`{objectives: [{within: 1s}], stages: [{name: a, hardware: [` + hardware + `]` + more + `}]}`)
}

// onGPU is hardware with a profile.
const onGPU = "{name: gpu, file: a.yaml}"

const objective = "{type: TimeToFirstToken, latency: {value: 1s}}"

// many returns n list items, in which %d is replaced by a number.
func many(n int, item string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.ReplaceAll(item, "%d", strconv.Itoa(i))
	}
	return strings.Join(all, ", ")
}

const base = "selector: {matchLabels: {app: llama}}, targetPorts: [{number: 8000}]"

// engineLimits has no closing brace, so that more may follow.
const engineLimits = "limits: {maxSequences: 256, maxBatchedTokens: 8192, kvBlocks: 61000, blockSize: 16"

// An API server with our CRDs and a folder accept and refuse the same objects.
func TestAPIServerAndFolderAgree(t *testing.T) {
	c := newCluster(t)
	long := strings.Repeat("x", 513)
	for _, row := range []struct {
		object string
		want   string // the API server's error; empty if accepted
	}{
		{route(`{backendRefs: [{name: p}]}`), ""},
		{route(`{parentRefs: [{name: gateway}], backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: p, weight: 0}, {name: q, weight: 1000000}], modelNames: [a, org/b, "ü b"], adapter: {name: org/sql-v2}, priority: -3, objectives: [{type: OutputTokenLatency, latency: {value: 200ms, quantile: {numerator: 99, denominator: 100}}}, {type: TimeToFirstToken, latency: {value: 1m0.5s}}], metrics: {format: Prometheus}}`), ""},
		{route(`{}`), "spec.backendRefs: Required value: name the InferencePool that serves the route"},
		{route(`{backendRefs: []}`), "spec.backendRefs: Required value: name the InferencePool that serves the route"},
		{route(`{backendRefs: [{weight: 1}]}`), "spec.backendRefs[0].name: Required value: name an InferencePool in the route's namespace"},
		{route(`{backendRefs: [{name: p, weight: 0}]}`), "give at least one pool a weight above 0"},
		{route(`{backendRefs: [{name: p, weight: -1}]}`), "spec.backendRefs[0].weight in body should be greater than or equal to 0"},
		{route(`{backendRefs: [{name: p, weight: 1000001}]}`), "should be less than or equal to 1000000"},
		{
			route(`{backendRefs: [{name: p, kind: Service}]}`),
			`spec.backendRefs[0].kind: Unsupported value: "Service": supported values: "InferencePool"`,
		},
		{route(`{backendRefs: [{name: p, group: apps}]}`), `supported values: "inference.networking.k8s.io"`},
		{route(`{backendRefs: [` + strings.Repeat(`{name: p},`, 17) + `]}`), "must have at most 16 items"},
		{route(`{backendRefs: [{name: p}], parentRefs: [{kind: Gateway}]}`), "spec.parentRefs[0].name: Required value: name the Gateway"},
		{route(`{backendRefs: [{name: p}], modelNames: [a, a]}`), `spec.modelNames[1]: Duplicate value: "a"`},
		{route(`{backendRefs: [{name: p}], modelNames: [""]}`), "should be at least 1 chars long"},
		{route(`{backendRefs: [{name: p}], modelNames: [../x, /models/x.gguf, "~x", "a\\b", a//b]}`), ""},
		{route(`{backendRefs: [{name: p}], modelNames: ["a\u0085"]}`), "without control characters"},
		{route(`{backendRefs: [{name: p}], modelNames: ["a\uFFFD"]}`), "UTF-8 without control characters"},
		{route(`{backendRefs: [{name: p}], modelNames: [` + long + `]}`), "may not be more than 512"},
		{route(`{backendRefs: [{name: p}], modelNames: [` + strings.Repeat("ü", 257) + `]}`), "at most 512 bytes"},
		{
			route(`{backendRefs: [{name: p}], adapter: {name: x/..}}`),
			"spec.adapter.name: Invalid value: \"x/..\": no model can have this name",
		},
		{route(`{backendRefs: [{name: p}], adapter: {}}`), "spec.adapter.name: Required value"},
		{
			route(`{backendRefs: [{name: p}], objectives: [{type: Throughput, latency: {value: 1s}}]}`),
			`supported values: "OutputTokenLatency", "TimeToFirstToken"`,
		},
		{
			route(`{backendRefs: [{name: p}], objectives: [{type: TimeToFirstToken, latency: {value: 0s}}]}`),
			"spec.objectives[0].latency.value: Invalid value: \"0s\": a latency is above 0, such as 200ms",
		},
		{route(`{backendRefs: [{name: p}], objectives: [{type: TimeToFirstToken, latency: {value: -1s}}]}`), "such as 200ms"},
		{route(`{backendRefs: [{name: p}], objectives: [{type: TimeToFirstToken, latency: {value: fast}}]}`), "such as 200ms"},
		{
			route(`{backendRefs: [{name: p}], objectives: [{type: TimeToFirstToken, latency: {value: 1s, quantile: {numerator: 2, denominator: 1}}}]}`),
			"a quantile is above 0 and at most 1, such as {numerator: 99, denominator: 100}",
		},
		{
			route(`{backendRefs: [{name: p}], objectives: [{type: TimeToFirstToken, latency: {value: 1s, quantile: {numerator: 0, denominator: 1}}}]}`),
			"a quantile is above 0",
		},
		{route(`{backendRefs: [{name: p}], metrics: {format: OpenTelemetry}}`), `supported values: "Prometheus"`},
		{route(`{backendRefs: [{name: p}], share: 3, tenantHeader: x-tenant-id, programHeader: x-program-id, late: Shed, failurePolicy: FailClose, fallback: {pool: small}, limits: {route: {concurrent: 200}, tenant: {requestsPerMinute: 60, tokensPerMinute: 90000}}}`), ""},
		{route(`{backendRefs: [{name: p}], adapter: {name: a}, tenantHeader: x-headgate-client, fallback: {baseModel: true}, limits: {route: {}}}`), ""},
		{route(`{backendRefs: [{name: p}, {name: q, weight: 0}], fallback: {pool: q}}`), ""},
		{route(`{backendRefs: [{name: p}], share: 0}`), "spec.share in body should be greater than or equal to 1"},
		{route(`{backendRefs: [{name: p}], share: 1000001}`), "should be less than or equal to 1000000"},
		{route(`{backendRefs: [{name: p}], tenantHeader: X-Tenant}`), "want a header's name in lower case"},
		{route(`{backendRefs: [{name: p}], tenantHeader: ":path"}`), "want a header's name in lower case"},
		{route(`{backendRefs: [{name: p}], tenantHeader: authorization}`), "it is a credential"},
		{route(`{backendRefs: [{name: p}], tenantHeader: x-gateway-pool}`), "it is a credential, or a header of HTTP, Envoy or Headgate"},
		{route(`{backendRefs: [{name: p}], tenantHeader: x-headgate-fallback}`), "it is a header of Headgate"},
		{route(`{backendRefs: [{name: p}], tenantHeader: ` + strings.Repeat("x", 257) + `}`), "may not be more than 256"},
		{route(`{backendRefs: [{name: p}], programHeader: x-headgate-client}`), "it is a header of Headgate"},
		{route(`{backendRefs: [{name: p}], programHeader: cookie}`), "it is a credential"},
		{route(`{backendRefs: [{name: p}], late: Drop}`), `supported values: "Serve", "Shed"`},
		{route(`{backendRefs: [{name: p}], failurePolicy: Open}`), `supported values: "FailOpen", "FailClose"`},
		{route(`{backendRefs: [{name: p}], fallback: {}}`), "name a pool, or set baseModel"},
		{route(`{backendRefs: [{name: p}], fallback: {pool: p}}`), "this is a fallback to itself"},
		{route(`{backendRefs: [{name: p}], fallback: {baseModel: true}}`), "the route has no adapter"},
		{route(`{backendRefs: [{name: p}], adapter: {name: a}, fallback: {pool: p, baseModel: true}}`), ""},
		{route(`{backendRefs: [{name: p}], limits: {route: {concurrent: 0}}}`), "should be greater than or equal to 1"},
		{route(`{backendRefs: [{name: p}], limits: {tenant: {concurrent: 1}}}`), "name the header that identifies tenants"},
		{route(`{backendRefs: [{name: p}], tenantHeader: t, limits: {tenant: {tokensPerMinute: -1}}}`), "should be greater than or equal to 1"},
		{route(`{backendRefs: [{name: p}], prioritty: 3}`), `unknown field "spec.prioritty"`},
		{route(`{backendRefs: [{name: p}], priority: high}`), "spec.priority"},
		{strings.Replace(route(`{backendRefs: [{name: p}]}`), "name: r}", "name: R}", 1), "metadata.name"},
		{route(`{backendRefs: [` + many(16, `{name: p}`) + `], modelNames: [` + many(128, `m%d`) + `], parentRefs: [` +
			many(32, `{name: g}`) + `], objectives: [` + many(16, objective) + `]}`), ""},
		{route(`{backendRefs: [{name: p}], modelNames: [` + many(129, `m%d`) + `]}`), "must have at most 128 items"},
		{route(`{backendRefs: [{name: p}], parentRefs: [` + many(33, `{name: g}`) + `]}`), "must have at most 32 items"},
		{route(`{backendRefs: [{name: p}], objectives: [` + many(17, objective) + `]}`), "must have at most 16 items"},

		{model(`{poolRef: {name: p}}`), ""},
		{model(`{id: org/sql, poolRef: {name: p}, type: lora, baseModel: llama, source: s3://x, key: '{"a":1}', size: 50Mi, copies: {min: 1, max: 3}, pinned: true}`), ""},
		{model(`{poolRef: {name: p}, size: 1024, copies: {max: 1}}`), ""},
		{model(`{poolRef: {}}`), "spec.poolRef.name: Required value: name the InferencePool whose engines load it, in the same namespace"},
		{model(`{}`), "spec.poolRef: Required value"},
		{model(`{poolRef: {name: p}, id: ../x}`), "spec.id: Invalid value: \"../x\": no model can have this name"},
		{model(`{poolRef: {name: p}, serviceTime: 15ms}`), ""},
		{model(`{poolRef: {name: p}, serviceTime: 1h}`), ""},
		{model(`{poolRef: {name: p}, serviceTime: 0s}`), "it must be above 0s and no more than 1h, such as 15ms"},
		{model(`{poolRef: {name: p}, serviceTime: -1s}`), "it must be above 0s and no more than 1h, such as 15ms"},
		{model(`{poolRef: {name: p}, serviceTime: 61m}`), "it must be above 0s and no more than 1h, such as 15ms"},
		{model(`{poolRef: {name: p}, size: 0}`), "it must be above 0, such as 50Mi"},
		{model(`{poolRef: {name: p}, size: -1Mi}`), "it must be above 0, such as 50Mi"},
		{model(`{poolRef: {name: p}, size: large}`), "spec.size"},
		{model(`{poolRef: {name: p}, copies: {min: -1}}`), "should be greater than or equal to 0"},
		{model(`{poolRef: {name: p}, copies: {min: 3, max: 2}}`), "spec.copies.max: Invalid value: it must be at least 1 and at least min"},
		{model(`{poolRef: {name: p}, copies: {max: 0}}`), "it must be at least 1"},
		{model(`{poolRef: {name: p}, type: ` + long + `}`), "may not be more than 512"},
		{model(`{poolRef: {name: p}, baseModel: ` + long + `}`), "may not be more than 512"},
		{model(`{poolRef: {name: p}, storage: {}}`), ""},
		{model(`{poolRef: {name: p}, key: "", storage: {key: A_b.c-1, parameters: {type: s3, bucket: b}, schemaPath: a/b.json}}`), ""},
		{model(`{poolRef: {name: p}, key: "{}", storage: {key: k}}`), "spec.key: Invalid value: with storage, control writes the key: leave key empty"},
		{model(`{poolRef: {name: p}, storage: {key: a/b}}`), "no Secret can have this key: write one such as my-bucket"},
		{model(`{poolRef: {name: p}, storage: {key: ..a}}`), "no Secret can have this key: write one such as my-bucket"},
		{model(`{poolRef: {name: p}, storage: {key: ` + strings.Repeat("k", 254) + `}}`), "may not be more than 253"},
		{model(`{poolRef: {name: p}, storage: {parameters: {"": x}}}`), "the name of a parameter has 1 to 253 characters"},
		{model(`{poolRef: {name: p}, storage: {parameters: {bucket: ` + strings.Repeat("b", 4097) + `}}}`), "may not be more than 4096"},
		{model(`{poolRef: {name: p}, storage: {parameters: {` + many(32, `p%d: x`) + `}}}`), ""},
		{model(`{poolRef: {name: p}, storage: {parameters: {` + many(33, `p%d: x`) + `}}}`), "must have at most 32 items"},
		{model(`{poolRef: {name: p}, storage: {schemaPath: ` + strings.Repeat("s", 4097) + `}}`), "may not be more than 4096"},
		{model(`{poolRef: {name: p}, storage: {bucket: b}}`), `unknown field "spec.storage.bucket"`},
		{model(`{poolRef: {name: p}, source: ` + strings.Repeat("x", 4097) + `}`), "may not be more than 4096"},
		{model(`{poolRef: {name: p}, key: ` + strings.Repeat("x", 65537) + `}`), "may not be more than 65536"},
		{model(`{poolRef: {name: ` + long + `}}`), "may not be more than 253"},

		{vmodel(`{poolRef: {name: p}, target: m}`), ""},
		{vmodel(`{id: org/sql, poolRef: {name: p}, target: org/sql-v1, canary: {target: org/sql-v2, percent: 99}, owner: us}`), ""},
		{
			vmodel(`{poolRef: {}, target: m}`),
			"spec.poolRef.name: Required value: name the InferencePool of its models, in the same namespace",
		},
		{vmodel(`{poolRef: {name: p}}`), "spec.target"},
		{vmodel(`{poolRef: {name: p}, target: ""}`), "no model can have this name"},
		{vmodel(`{poolRef: {name: p}, target: ../m}`), "spec.target: Invalid value: \"../m\": no model can have this name"},
		{vmodel(`{poolRef: {name: p}, target: m, id: ../x}`), "spec.id: Invalid value: \"../x\": no model can have this name"},
		{vmodel(`{poolRef: {name: p}, target: m, canary: {percent: 5}}`), "spec.canary.target"},
		{
			vmodel(`{poolRef: {name: p}, target: m, canary: {target: ../n, percent: 5}}`),
			"spec.canary.target: Invalid value: \"../n\": no model can have this name",
		},
		{vmodel(`{poolRef: {name: p}, target: m, canary: {target: n2, percent: 0}}`), "should be greater than or equal to 1"},
		{vmodel(`{poolRef: {name: p}, target: m, canary: {target: n2, percent: 100}}`), "should be less than or equal to 99"},
		{vmodel(`{poolRef: {name: p}, target: m, owner: ` + long + `}`), "may not be more than 512"},
		{vmodel(`{poolRef: {name: ` + long + `}, target: m}`), "may not be more than 253"},

		{settings(`{poolRef: {name: p}}`), ""},
		{settings(`{poolRef: {name: p}, flow: {mode: "On", requestsPerEndpoint: 1}, timeouts: {queue: 60s, empty: 150s}}`), ""},
		{settings(`{poolRef: {name: p}, flow: {mode: "Off"}, timeouts: {empty: 0s}}`), ""},
		{settings(`{poolRef: {name: p}, flow: {mode: Maybe}}`), `supported values: "On", "Off"`},
		{settings(`{poolRef: {name: p}, flow: {mode: On}}`), "spec.flow.mode"},
		{settings(`{poolRef: {name: p}, flow: {requestsPerEndpoint: 0}}`), "should be greater than or equal to 1"},
		{settings(`{poolRef: {name: p}, timeouts: {empty: -1s}}`), "it must be at least 0, such as 150s"},
		{settings(`{poolRef: {name: p}, defaultModel: /models/ü.gguf}`), ""},
		{settings(`{poolRef: {name: p}, defaultModel: "a\u0085"}`), "without control characters"},
		{settings(`{poolRef: {name: p}, defaultModel: ` + strings.Repeat("ü", 257) + `}`), "at most 512 bytes"},
		{settings(`{poolRef: {name: p}, placement: {hostAdapters: 0}}`), "should be greater than or equal to 1"},
		{settings(`{poolRef: {name: p}, placement: {capacity: 4Gi, maxModels: 1, defaultSize: 1M}}`), ""},
		{settings(`{poolRef: {name: p}, placement: {capacity: 1, defaultSize: "0.5"}}`), ""},
		{settings(`{poolRef: {name: p}, placement: {capacity: 0}}`), "it must be above 0, such as 4Gi"},
		{settings(`{poolRef: {name: p}, placement: {capacity: "-1Gi"}}`), "it must be above 0, such as 4Gi"},
		{settings(`{poolRef: {name: p}, placement: {defaultSize: 0}}`), "it must be above 0, such as 50Mi"},
		{settings(`{poolRef: {name: p}, placement: {maxModels: 0}}`), "should be greater than or equal to 1"},
		{settings(`{poolRef: {name: p}, placement: {scaleUpRPM: 10}}`), ""},
		{settings(`{poolRef: {name: p}, ports: {grpc: 8001, http: 1, metrics: 65535}}`), ""},
		{settings(`{poolRef: {name: p}, allowOtherRpcs: false, rpcConfigs: {inference.GRPCInferenceService/ModelInfer: {idExtractionPath: [1], vModelId: true}, Run/It: {}, a.b_1.S/M: {idExtractionPath: [536870911, 18999, 20000]}}}`), ""},
		{settings(`{poolRef: {name: p}, rpcConfigs: {/a.S/M: {}}}`), "spec.rpcConfigs"},
		{settings(`{poolRef: {name: p}, rpcConfigs: {a.S: {}}}`), "write methods as package.Service/Method"},
		{settings(`{poolRef: {name: p}, rpcConfigs: {a.S/M/N: {}}}`), "write methods as package.Service/Method"},
		{settings(`{poolRef: {name: p}, rpcConfigs: {a.S/M: {idExtractionPath: [1, 0]}}}`), "spec.rpcConfigs.a.S/M.idExtractionPath[1]"},
		{
			settings(`{poolRef: {name: p}, rpcConfigs: {a.S/M: {idExtractionPath: [536870912]}}}`),
			"should be less than or equal to 536870911",
		},
		{
			settings(`{poolRef: {name: p}, rpcConfigs: {a.S/M: {idExtractionPath: [19000]}}}`),
			"protobuf reserves the field numbers from 19000 to 19999",
		},
		{
			settings(`{poolRef: {name: p}, rpcConfigs: {a.S/M: {idExtractionPath: [19999]}}}`),
			"protobuf reserves the field numbers from 19000 to 19999",
		},
		{
			settings(`{poolRef: {name: p}, rpcConfigs: {a.S/M: {idExtractionPath: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]}}}`),
			"must have at most 16 items",
		},
		{settings(`{poolRef: {name: p}, rpcConfigs: {a.S/M: {idExtractionPaths: [1]}}}`), "unknown field"},
		{settings(`{poolRef: {name: p}, rpcConfigs: {` + many(64, `a.S/M%d: {}`) + `}}`), ""},
		{settings(`{poolRef: {name: p}, rpcConfigs: {` + many(65, `a.S/M%d: {}`) + `}}`), "must have at most 64"},
		{settings(`{poolRef: {name: p}, ports: {grpc: 0}}`), "should be greater than or equal to 1"},
		{settings(`{poolRef: {name: p}, ports: {metrics: 65536}}`), "should be less than or equal to 65535"},
		{settings(`{poolRef: {name: p}, placement: {scaleUpRPM: 9}}`), "should be greater than or equal to 10"},
		{settings(`{poolRef: {name: p}, policy: roundRobin, adapterThreshold: 1, retry: {attempts: 7}, sessionAffinity: {header: x-session-id}, timeouts: {request: 10m, queue: 2m, inFlight: 1m, staleAfter: 1s, lostAfter: 1s}, placement: {maxAdapters: 1, hostAdapters: 1, source: "/models/{id}", management: "port:8085", loadTimeout: 5m, failureExpiry: 90s}}`), ""},
		{settings(`{poolRef: {name: p}, policy: leastRequest, sessionAffinity: {cookie: s}, retry: {attempts: 0, unavailable: false}}`), ""},
		{settings(`{poolRef: {}}`), "spec.poolRef.name: Required value: name the InferencePool, in the same namespace"},
		{
			settings(`{poolRef: {name: p}, policy: best}`),
			`spec.policy: Unsupported value: "best": supported values: "latency", "proposal", "leastRequest", "roundRobin", "random"`,
		},
		{settings(`{poolRef: {name: p}, adapterThreshold: 0}`), "should be greater than or equal to 1"},
		{settings(`{poolRef: {name: p}, retry: {attempts: 8}}`), "should be less than or equal to 7"},
		{settings(`{poolRef: {name: p}, retry: {attempts: -1}}`), "should be greater than or equal to 0"},
		{settings(`{poolRef: {name: p}, sessionAffinity: {}}`), "name either a header or a cookie"},
		{settings(`{poolRef: {name: p}, sessionAffinity: {header: a, cookie: b}}`), "name either a header or a cookie"},
		{settings(`{poolRef: {name: p}, sessionAffinity: {header: X-Session}}`), "write the header's name in lower case"},
		{settings(`{poolRef: {name: p}, sessionAffinity: {header: ":path"}}`), "it is a part of the request line"},
		{settings(`{poolRef: {name: p}, sessionAffinity: {cookie: ` + long + `}}`), "may not be more than 256"},
		{
			settings(`{poolRef: {name: p}, timeouts: {request: 0s}}`),
			"spec.timeouts.request: Invalid value: \"0s\": it must be above 0, such as 30s",
		},
		{settings(`{poolRef: {name: p}, timeouts: {queue: 0s}}`), "such as 30s"},
		{settings(`{poolRef: {name: p}, timeouts: {inFlight: 0s}}`), "such as 30s"},
		{settings(`{poolRef: {name: p}, timeouts: {staleAfter: soon}}`), "such as 30s"},
		{
			settings(`{poolRef: {name: p}, timeouts: {staleAfter: 1m, lostAfter: 1s}}`),
			"spec.timeouts.lostAfter: Invalid value: it must be at least as long as staleAfter",
		},
		{settings(`{poolRef: {name: p}, placement: {constraints: [{required: {gpu: a}}, {modelType: sklearn, preferred: [{disk: fast, zone: a}, {disk: slow}]}, {modelType: onnx}]}}`), ""},
		{settings(`{poolRef: {name: p}, placement: {constraints: [{modelType: a}, {modelType: a}]}}`), "Duplicate value"},
		{settings(`{poolRef: {name: p}, placement: {constraints: [{modelType: ` + long + `}]}}`), "may not be more than 512"},
		{settings(`{poolRef: {name: p}, placement: {constraints: [{required: {gpu: ` + long + `}}]}}`), "may not be more than 63"},
		{settings(`{poolRef: {name: p}, placement: {constraints: [{preferred: [{}]}]}}`), "spec.placement.constraints[0].preferred[0]"},
		{settings(`{poolRef: {name: p}, placement: {loadTimeout: 0s}}`), "such as 30s"},
		{settings(`{poolRef: {name: p}, placement: {failureExpiry: soon}}`), "such as 30s"},
		{settings(`{poolRef: {name: p}, placement: {maxAdapters: 0}}`), "should be greater than or equal to 1"},
		{settings(`{poolRef: {name: p}, placement: {management: "unix:/x"}}`), "a socket is for an EndpointList of one address"},
		{settings(`{poolRef: {name: p}, placement: {management: "port:65536"}}`), "want port:NUMBER"},
		{settings(`{poolRef: {name: p}, placement: {source: ` + strings.Repeat("x", 4097) + `}}`), "may not be more than 4096"},
		{settings(`{poolRef: {name: p}, authorization: Client, engineTLS: {hostname: engines.llm.svc}}`), ""},
		{settings(`{poolRef: {name: p}, authorization: Always}`), `supported values: "Client", "Engine"`},
		{settings(`{poolRef: {name: p}, engineTLS: {insecureSkipVerify: true}}`), ""},
		{settings(`{poolRef: {name: p}, engineTLS: {insecureSkipVerify: true, hostname: a}}`), ""},
		{
			settings(`{poolRef: {name: p}, engineTLS: {}}`),
			"spec.engineTLS.hostname: Required value: set the DNS name in the engines' certificates",
		},
		{settings(`{poolRef: {name: p}, engineTLS: {insecureSkipVerify: false}}`), "spec.engineTLS.hostname: Required value"},
		{settings(`{poolRef: {name: p}, engineTLS: {hostname: "*.test"}}`), "want a DNS name, such as engines.llm.svc"},
		{settings(`{poolRef: {name: p}, engineTLS: {hostname: a, caCertificates: none}}`), "want certificates in PEM"},
		{
			settings(`{poolRef: {name: p}, engineTLS: {insecureSkipVerify: true, caCertificates: "-----BEGIN CERTIFICATE-----"}}`),
			"insecureSkipVerify ignores them: set only one of the two",
		},
		{settings(`{poolRef: {name: p}, engineToken: {}}`), "spec.engineToken.secretRef: Required value"},
		{
			settings(`{poolRef: {name: p}, engineToken: {secretRef: {}}}`),
			"spec.engineToken.secretRef.name: Required value: name the Secret, in the same namespace",
		},
		{
			settings(`{poolRef: {name: p}, engineToken: {secretRef: {name: ""}}}`),
			"spec.engineToken.secretRef.name: Required value: name the Secret, in the same namespace",
		},
		{
			settings(`{poolRef: {name: p}, engineToken: {secretRef: {name: ../other/s}}}`),
			"no Secret can have this name: write one such as engine-token",
		},
		{settings(`{poolRef: {name: p}, engineToken: {secretRef: {name: S}}}`), "no Secret can have this name"},
		{settings(`{poolRef: {name: p}, engineToken: {secretRef: {name: a..b}}}`), "no Secret can have this name"},
		{settings(`{poolRef: {name: p}, engineToken: {secretRef: {name: ` + strings.Repeat("x", 254) + `}}}`), "may not be more than 253"},
		{
			settings(`{poolRef: {name: p}, engineToken: {secretRef: {name: s, key: a/b}}}`),
			"no Secret can have this key: write one such as token",
		},
		{settings(`{poolRef: {name: p}, engineToken: {secretRef: {name: s, key: ..}}}`), "no Secret can have this key"},
		{settings(`{poolRef: {name: p}, engineToken: {secretRef: {name: s, key: .}}}`), "no Secret can have this key"},
		{
			settings(`{poolRef: {name: p}, engineToken: {secretRef: {name: s, namespace: other}}}`),
			`unknown field "spec.engineToken.secretRef.namespace"`,
		},
		{settings(`{poolRef: {name: p}, profile: {hardware: 4 x A100-80GB, parameters: 70B}}`), ""},
		{settings(`{poolRef: {name: p}, profile: {hardware: l4, parameters: 0.5b, acceleratorLabel: nvidia.com/gpu.product}}`), ""},
		{settings(`{poolRef: {name: p}, profile: {inline: {prefill: {}, decode: {}, ` + engineLimits + `}}}}`), ""},
		{settings(`{poolRef: {name: p}, profile: {inline: {name: small, source: measured, frontendOverhead: 0.01, prefill: {floor: 0.02, base: 1, perToken: 5.4e-5, perTokenSquared: 1e-9}, decode: {base: 0.01, perSequence: 0, perKVToken: 1e-07, adapterSlowdown: 2}, adapterLoad: {mean: 1, stddev: 0.1}, adapterActivation: {mean: 0}, ` +
			engineLimits +
			`, gpuAdapters: 4, hostAdapters: 4}}}}`), ""},
		{settings(`{poolRef: {name: p}, profile: {}}`), "set one of inline, file, and hardware with parameters"},
		{settings(`{poolRef: {name: p}, profile: {acceleratorLabel: gpu}}`), "set one of inline, file, and hardware with parameters"},
		{settings(`{poolRef: {name: p}, profile: {hardware: l4, parameters: 8B, inline: {prefill: {}, decode: {}, ` + engineLimits +
			`}}}}`), "set one of inline, file, and hardware with parameters"},
		{settings(`{poolRef: {name: p}, profile: {hardware: l4}}`), "set both hardware and parameters, such as 4 x A100-80GB and 70B"},
		{settings(`{poolRef: {name: p}, profile: {parameters: 8B}}`), "set both hardware and parameters"},
		{
			settings(`{poolRef: {name: p}, profile: {hardware: l4, parameters: many}}`),
			"set the model's number of parameters, such as 8B, 70B or 500M",
		},
		{
			settings(`{poolRef: {name: p}, profile: {hardware: l4, parameters: 8B, acceleratorLabel: a/b/c}}`),
			"no label can have this name: write one such as example.com/gpu",
		},
		{settings(`{poolRef: {name: p}, profile: {hardware: l4, parameters: 8B, acceleratorLabel: -a}}`), "no label can have this name"},
		{settings(`{poolRef: {name: p}, profile: {hardware: l4, parameters: 8B, pinned: true}}`), ""},
		{settings(`{poolRef: {name: p}, profile: {acceleratorLabel: gpu, accelerators: [{accelerator: A100, hardware: a100-80gb, parameters: 8B, pinned: true}, {accelerator: L4, hardware: l4, parameters: 8B}]}}`), ""},
		{settings(`{poolRef: {name: p}, profile: {hardware: l4, parameters: 8B, acceleratorLabel: gpu, accelerators: [{accelerator: A100, inline: {prefill: {}, decode: {}, ` +
			engineLimits +
			`}}}]}}`), ""},
		{
			settings(`{poolRef: {name: p}, profile: {hardware: l4, parameters: 8B, accelerators: [{accelerator: A100, hardware: a100-80gb, parameters: 8B}]}}`),
			"spec.profile.acceleratorLabel: Required value: name the label that says which accelerator an endpoint has",
		},
		{
			settings(`{poolRef: {name: p}, profile: {acceleratorLabel: gpu, pinned: true, accelerators: [{accelerator: A100, hardware: a100-80gb, parameters: 8B}]}}`),
			"pinned needs a profile: set inline, file, or hardware with parameters",
		},
		{
			settings(`{poolRef: {name: p}, profile: {acceleratorLabel: gpu, accelerators: []}}`),
			"set one of inline, file, and hardware with parameters",
		},
		{
			settings(`{poolRef: {name: p}, profile: {acceleratorLabel: gpu, accelerators: [{accelerator: A100}]}}`),
			"spec.profile.accelerators[0]: Invalid value: set one of inline, file, and hardware with parameters",
		},
		{
			settings(`{poolRef: {name: p}, profile: {acceleratorLabel: gpu, accelerators: [{accelerator: A100, hardware: a100-80gb}]}}`),
			"set both hardware and parameters",
		},
		{
			settings(`{poolRef: {name: p}, profile: {acceleratorLabel: gpu, accelerators: [{hardware: a100-80gb, parameters: 8B}]}}`),
			"spec.profile.accelerators[0].accelerator: Required value",
		},
		{
			settings(`{poolRef: {name: p}, profile: {acceleratorLabel: gpu, accelerators: [{accelerator: a, hardware: a100-80gb, parameters: 8B}, {accelerator: a, hardware: l4, parameters: 8B}]}}`),
			"spec.profile.accelerators[1]: Duplicate value",
		},
		{
			settings(`{poolRef: {name: p}, profile: {inline: {prefill: {base: -0.1}, decode: {}, ` + engineLimits + `}}}}`),
			"spec.profile.inline.prefill.base in body should be greater than or equal to 0",
		},
		{
			settings(`{poolRef: {name: p}, profile: {inline: {prefill: {}, decode: {adapterSlowdown: 0.5}, ` + engineLimits + `}}}}`),
			"it is how many times as long a step takes with adapters, at least 1",
		},
		{
			settings(`{poolRef: {name: p}, profile: {inline: {prefill: {}, decode: {}, ` + engineLimits + `, gpuAdapters: 2}}}}`),
			"spec.profile.inline.limits.hostAdapters: Invalid value: it must be at least gpuAdapters",
		},
		{
			settings(`{poolRef: {name: p}, profile: {inline: {prefill: {}, decode: {}, limits: {maxSequences: 0, maxBatchedTokens: 1, kvBlocks: 1, blockSize: 1}}}}`),
			"should be greater than or equal to 1",
		},
		{
			settings(`{poolRef: {name: p}, profile: {inline: {prefil: {}, prefill: {}, decode: {}, ` + engineLimits + `}}}}`),
			`unknown field "spec.profile.inline.prefil"`,
		},

		{list(`{addresses: ["10.0.0.7:8000", "[fd00::7]:8000", "gpu-2.internal:65535", "gpu_3:1", "GPU-4.internal.:80"], engine: llama.cpp}`), ""},
		{list(`{addresses: ["10.0.0.7:8000"], engine: modelruntime, management: "port:8085"}`), ""},
		{list(`{addresses: ["10.0.0.7:8080"], engine: mlserver}`), ""},
		{list(`{addresses: ["10.0.0.7:8080"], engine: torchserve, management: "port:8081"}`), ""},
		{list(`{addresses: ["10.0.0.7:8500"], engine: tfserving}`), ""},
		{
			list(`{addresses: ["10.0.0.7:8080"], engine: mlserver, management: "port:8085"}`),
			"only engines of the kinds modelruntime, torchserve, vllm and sglang have a management address",
		},
		{list(`{addresses: ["a:1", "b:1"], management: "port:8085"}`), ""},
		{list(`{addresses: [` + many(512, `"h%d:1"`) + `]}`), ""},
		{list(`{addresses: [` + many(513, `"h%d:1"`) + `]}`), "must have at most 512 items"},
		{list(`{addresses: ["a:1"], ports: {grpc: 8001}}`), ""},
		{list(`{addresses: ["a:1"], ports: {http: 65536}}`), "should be less than or equal to 65535"},
		{list(`{}`), "spec.addresses: Required value: name at least one address, such as 10.0.0.7:8000"},
		{list(`{addresses: []}`), "spec.addresses: Required value: name at least one address"},
		{list(`{addresses: ["a:1", "a:1"]}`), `spec.addresses[1]: Duplicate value: "a:1"`},
		{list(`{addresses: ["http://a:1"]}`), "want host:port without scheme and path, such as 10.0.0.7:8000"},
		{list(`{addresses: ["a"]}`), "want host:port"},
		{list(`{addresses: ["a:0"]}`), "want host:port"},
		{list(`{addresses: ["a:65536"]}`), "want host:port"},
		{list(`{addresses: [":80"]}`), "want host:port"},
		{list(`{addresses: ["a..b:80"]}`), "want host:port"},
		{list(`{addresses: ["-a:80"]}`), "want host:port"},
		{list(`{addresses: ["10.0.0:80"]}`), "want host:port"},
		{list(`{addresses: ["10.0.0.256:80"]}`), "want host:port"},
		{list(`{addresses: ["[10.0.0.7]:80"]}`), "want host:port"},
		{list(`{addresses: ["fd00::7:80"]}`), "want host:port"},
		{list(`{addresses: ["[fe80::1%eth0]:80"]}`), "want host:port"},
		{list(`{addresses: ["a:1", "[::ffff:169.254.169.254]:80"]}`), "want host:port"},
		{
			list(`{addresses: ["a:1", "169.254.169.254:80"]}`),
			"spec.addresses[1]: Invalid value: \"169.254.169.254:80\": an engine's address must not be loopback, link-local, multicast, broadcast or unspecified",
		},
		{list(`{addresses: ["[fe80::1]:80"]}`), "an engine's address must not be loopback, link-local"},
		{list(`{addresses: ["0.0.0.0:80"]}`), "an engine's address must not be loopback, link-local"},
		{list(`{addresses: ["[::]:80"]}`), "an engine's address must not be loopback, link-local"},
		{list(`{addresses: ["224.0.0.1:80"]}`), "an engine's address must not be loopback, link-local"},
		{list(`{addresses: ["[ff02::1]:80"]}`), "an engine's address must not be loopback, link-local"},
		{list(`{addresses: ["255.255.255.255:80"]}`), "an engine's address must not be loopback, link-local"},
		{list(`{addresses: ["` + strings.Repeat("x", 64) + `:80"]}`), "want host:port"},
		{
			list(`{addresses: ["a:1"], engine: xllm}`),
			`spec.engine: Unsupported value: "xllm": supported values: "vllm", "nim", "sglang", "trtllm-serve", "triton-tensorrt-llm", "triton", "tgi", "llama.cpp", "lmdeploy", "mlserver", "torchserve", "tfserving", "modelruntime"`,
		},
		{list(`{addresses: ["a:1"], management: "8085"}`), "want port:NUMBER, such as port:8085"},
		{list(`{addresses: ["a:1"], engine: vllm, management: "port:8086"}`), ""},
		{list(`{addresses: ["a:1"], engine: sglang, management: "port:8086"}`), ""},
		{
			list(`{addresses: ["a:1"], engine: vllm, management: "unix:/run/agent.sock"}`),
			"want port:NUMBER, such as port:8085; a socket is for an EndpointList in a folder",
		},
		{
			list(`{addresses: ["a:1"], engine: tgi, management: "port:8085"}`),
			"only engines of the kinds modelruntime, torchserve, vllm and sglang have a management address",
		},
		{list(`{addresses: ["a:1", "b:1"], management: "unix:/x"}`), "a socket is for an EndpointList in a folder"},

		{capacityPlan(`{objectives: [{metric: TimePerOutputToken, within: 30ms, quantile: 0.9}], hardware: [{name: gpu, price: 1.5, maxUnits: 4}], hardwareFile: h.yaml, trace: "gamma:rate=1", seed: 3, stages: [{name: a, model: m, poolRef: {name: p}, hardware: [{name: gpu, units: 2, price: 3, latencies: [{size: 1, mean: 10ms}, {size: 4, mean: 20ms}], batchSizes: [1, 4]}], replicas: {min: 2, max: 9}, maxBatchDelay: 5ms, gatewayOverhead: 3ms, startup: 90s, batching: Always, queue: Central, memory: {perReplica: 1Gi, models: 3Gi}, next: [{stage: b, share: 0.5, choice: x}]}, {name: b, hardware: [{name: gpu, engine: {prefill: {base: 0.1}, decode: {base: 0.1}, ` + engineLimits + `}}}]}]}`), ""},
		{planOf("", onGPU), ""},
		{capacityPlan(`{}`), "spec.objectives: Required value"},
		{
			capacityPlan(`{objectives: [], stages: [{name: a, hardware: [` + onGPU + `]}]}`),
			"spec.objectives in body should have at least 1 items",
		},
		{capacityPlan(`{objectives: [{within: 1s}], stages: []}`), "spec.stages in body should have at least 1 items"},
		{capacityPlan(`{objectives: [{within: 0s}], stages: [{name: a, hardware: [` + onGPU + `]}]}`), "it must be above 0"},
		{
			capacityPlan(`{objectives: [{within: 1s, metric: Speed}], stages: [{name: a, hardware: [` + onGPU + `]}]}`),
			`supported values: "Latency", "TimeToFirstToken", "TimePerOutputToken"`,
		},
		{capacityPlan(`{objectives: [{within: 1s, quantile: 0}], stages: [{name: a, hardware: [` + onGPU + `]}]}`), "it must be above 0"},
		{
			capacityPlan(`{objectives: [{within: 1s, quantile: 1.5}], stages: [{name: a, hardware: [` + onGPU + `]}]}`),
			"should be less than or equal to 1",
		},
		{
			capacityPlan(`{objectives: [{within: 1s}], seed: -1, stages: [{name: a, hardware: [` + onGPU + `]}]}`),
			"should be greater than or equal to 0",
		},
		{
			capacityPlan(`{objectives: [{within: 1s}], hardware: [{name: gpu, price: 0}], stages: [{name: a, hardware: [` + onGPU + `]}]}`),
			"it must be above 0",
		},
		{
			capacityPlan(`{objectives: [{within: 1s}], hardware: [{name: gpu}, {name: gpu}], stages: [{name: a, hardware: [` + onGPU + `]}]}`),
			"Duplicate value",
		},
		{
			capacityPlan(`{objectives: [{within: 1s}], stages: [{name: a, hardware: [` + onGPU + `]}, {name: a, hardware: [` + onGPU + `]}]}`),
			"Duplicate value",
		},
		{capacityPlan(`{objectives: [{within: 1s}], stages: [{name: a, hardware: [` + onGPU +
			`], next: [{stage: b}]}, {name: b, hardware: [` + onGPU + `], next: [{stage: a}]}]}`), "stages form a cycle"},
		{planOf("", ""), "should have at least 1 items"},
		{planOf("", "{name: gpu}"), "set one of file, latencies and engine"},
		{planOf("", "{name: gpu, file: a.yaml, latencies: [{size: 1, mean: 1ms}]}"), "set one of file, latencies and engine"},
		{planOf("", "{name: gpu, latencies: [{size: 1, mean: 0s}]}"), "a batch takes some time"},
		{planOf("", "{name: gpu, file: a.yaml, units: 0}"), "should be greater than or equal to 1"},
		{planOf("", "{name: gpu, file: a.yaml, price: -1}"), "it must be above 0"},
		{planOf("", "{name: gpu, file: a.yaml, batchSizes: [0]}"), "should be greater than or equal to 1"},
		{planOf(", next: [{stage: b}]", onGPU), "next names a stage that does not exist"},
		{planOf(", replicas: {min: 0}", onGPU), "should be greater than or equal to 1"},
		{planOf(", replicas: {min: 3, max: 2}", onGPU), "it must be at least min"},
		{planOf(", maxBatchDelay: -1s", onGPU), "it must not be negative"},
		{planOf(", gatewayOverhead: -1s", onGPU), "it must not be negative"},
		{planOf(", batching: Never", onGPU), "supported values: \"WhenIdle\", \"Always\""},
		{planOf(", batching: Always", onGPU), "set maxBatchDelay: how long a batch waits for more queries"},
		{planOf(", batching: Always, maxBatchDelay: 0s", onGPU), "set maxBatchDelay: how long a batch waits for more queries"},
		{planOf(", startup: -1s", onGPU), "it must not be negative"},
		{planOf(", queue: Somewhere", onGPU), `supported values: "Replica", "Central"`},
		{planOf(", memory: {perReplica: 1Gi}", onGPU), "set one of models and minEvictionAge"},
		{planOf(", memory: {perReplica: 1Gi, minEvictionAge: 1m}", onGPU), "set modelSize, the mean size of a model"},
		{planOf(", speed: 3", onGPU), `unknown field "spec.stages[0].speed"`},

		{gatewaySettings(`{payloads: {}}`), ""},
		{gatewaySettings(`{replicas: 1, service: {type: NodePort}, timeouts: {idle: 20s}, payloads: {processors: ["http://sink:8080/all?m#a.B/C", "https://[fd00::1]/x", "logger://*"]}}`), ""},
		{gatewaySettings(`{replicas: 0}`), "should be greater than or equal to 1"},
		{gatewaySettings(`{service: {type: ExternalName}}`), `supported values: "LoadBalancer", "ClusterIP", "NodePort"`},
		{gatewaySettings(`{timeouts: {idle: 0s}}`), "it must be above 0, such as 600s"},
		{
			gatewaySettings(`{payloads: {processors: [sink]}}`),
			"write the URL of a sink, such as https://sink.example/payloads, or logger://*",
		},
		{gatewaySettings(`{payloads: {processors: ["https://"]}}`), "write the URL of a sink"},
		{gatewaySettings(`{payloads: {processors: ["https://a b"]}}`), "write the URL of a sink"},
		{gatewaySettings(`{payloads: {processors: ["https://a\tb"]}}`), "write the URL of a sink"},
		{gatewaySettings(`{payloads: {processors: ["ftp://a"]}}`), "write the URL of a sink"},
		{gatewaySettings(`{payloads: {processors: ["https://` + strings.Repeat("x", 2048) + `"]}}`), "may not be more than 2048"},
		{gatewaySettings(`{payloads: {processors: [` + many(17, `"https://a"`) + `]}}`), "must have at most 16 items"},

		{inferencePool(`{` + base + `}`), ""},
		{inferencePool(`{` + base +
			`, appProtocol: kubernetes.io/h2c, endpointPickerRef: {name: picker, port: {number: 9002}, failureMode: FailOpen}}`), ""},
		{inferencePool(`{` + base + `, endpointPickerRef: {group: example.com, kind: Picker, name: picker}}`), ""},
		{inferencePool(`{selector: {matchLabels: {}}, targetPorts: [{number: 8000}]}`), "spec.selector.matchLabels"},
		{inferencePool(`{targetPorts: [{number: 8000}]}`), "spec.selector: Required value"},
		{inferencePool(`{selector: {matchLabels: {app: llama}}}`), "spec.targetPorts: Required value"},
		{
			inferencePool(`{selector: {matchLabels: {app: llama}}, targetPorts: []}`),
			"spec.targetPorts in body should have at least 1 items",
		},
		{inferencePool(`{selector: {matchLabels: {app: llama}}, targetPorts: [{number: 0}]}`), "should be greater than or equal to 1"},
		{inferencePool(`{selector: {matchLabels: {app: llama}}, targetPorts: [{number: 65536}]}`), "should be less than or equal to 65535"},
		{inferencePool(`{selector: {matchLabels: {app: llama}}, targetPorts: [{number: 1}, {number: 1}]}`), "name each port once"},
		{
			inferencePool(`{selector: {matchLabels: {app: llama}}, targetPorts: [{number: 1},{number: 2},{number: 3},{number: 4},{number: 5},{number: 6},{number: 7},{number: 8},{number: 9}]}`),
			"must have at most 8 items",
		},
		{inferencePool(`{` + base + `, appProtocol: grpc}`), `supported values: "http", "kubernetes.io/h2c"`},
		{inferencePool(`{` + base + `, endpointPickerRef: {port: {number: 9002}}}`), "spec.endpointPickerRef.name: Required value"},
		{
			inferencePool(`{` + base + `, endpointPickerRef: {name: picker}}`),
			"spec.endpointPickerRef.port: Required value: a Service needs the port that its endpoint picker serves on",
		},
		{inferencePool(`{` + base + `, endpointPickerRef: {name: picker, port: {number: 0}}}`), "should be greater than or equal to 1"},
		{
			inferencePool(`{` + base + `, endpointPickerRef: {name: picker, port: {number: 1}, failureMode: Never}}`),
			`supported values: "FailOpen", "FailClose"`,
		},
	} {
		server, folder := c.verdicts(row.object)
		if (server == nil) != (folder == nil) {
			t.Errorf("%s\nthe API server says %v,\na folder %v", row.object, server, folder)
		}
		switch {
		case row.want == "" && server != nil:
			t.Errorf("%s\nis good, and the API server says %v", row.object, server)
		case row.want != "" && (server == nil || !strings.Contains(server.Error(), row.want)):
			t.Errorf("%.300s\nthe API server says %v,\nwant %s", row.object, server, row.want)
		}
	}
}

// A folder's objects may refer to the user's own machine; a cluster's objects must not refer to
// Headgate's own pods.
func TestFolderAcceptsMore(t *testing.T) {
	c := newCluster(t)
	for _, row := range []struct{ object, want string }{
		{
			list(`{addresses: ["a:1", "127.0.0.1:8000"]}`),
			"an engine's address must not be loopback, link-local, multicast, broadcast or unspecified",
		},
		{list(`{addresses: ["127.255.0.7:8000"]}`), "an engine's address must not be loopback, link-local"},
		{list(`{addresses: ["[::1]:8000"]}`), "an engine's address must not be loopback, link-local"},
		{
			list(`{addresses: ["10.0.0.7:8000"], engine: modelruntime, management: "unix:/run/x.sock"}`),
			"want port:NUMBER, such as port:8085; a socket is for an EndpointList in a folder",
		},
		{
			settings(`{poolRef: {name: p}, profile: {acceleratorLabel: gpu, accelerators: [{accelerator: a, file: p.yaml}]}}`),
			"file works only for objects in a folder: put its content under inline",
		},
		{settings(`{poolRef: {name: p}, profile: {file: p.yaml}}`), "file works only for objects in a folder: put its content under inline"},
	} {
		server, folder := c.verdicts(row.object)
		if server == nil || !strings.Contains(server.Error(), row.want) {
			t.Errorf("%s\nthe API server says %v,\nwant %s", row.object, server, row.want)
		}
		if folder != nil {
			t.Errorf("%s\na folder says %v", row.object, folder)
		}
	}
	if server, folder := c.verdicts(list(`{addresses: ["a:1", "b:1"], management: "unix:/x"}`)); server == nil || folder == nil ||
		!strings.Contains(folder.Error(), "a socket belongs to one endpoint: put each address into its own EndpointList") {
		t.Errorf("of a socket of two endpoints the API server says %v, a folder %v", server, folder)
	}
}

// Engine tokens are not read from a folder.
func TestAPIServerAcceptsMore(t *testing.T) {
	c := newCluster(t)
	server, folder := c.verdicts(settings(`{poolRef: {name: p}, authorization: Engine}`))
	if server == nil || !strings.Contains(server.Error(),
		"spec.engineToken: Required value: name the engines' token in engineToken") || folder != nil {
		t.Errorf("of requests with a token that is not named the API server says %v, a folder %v", server, folder)
	}
	for _, spec := range []string{
		`{poolRef: {name: p}, engineToken: {secretRef: {name: engine-token}}}`,
		`{poolRef: {name: p}, engineToken: {secretRef: {name: engine-token}}, authorization: Engine}`,
		`{poolRef: {name: p}, engineToken: {secretRef: {name: a.b-1.c, key: A_b.c-1}}}`,
		`{poolRef: {name: p}, engineToken: {secretRef: {name: s, key: ""}}}`,
	} {
		server, folder := c.verdicts(settings(spec))
		if server != nil {
			t.Errorf("%s\nthe API server says %v", spec, server)
		}
		if folder == nil || !strings.Contains(folder.Error(),
			"spec.engineToken: Forbidden: engine tokens cannot come from a folder: remove it, and set --engine-token-file") {
			t.Errorf("%s\na folder says %v", spec, folder)
		}
	}
}

func TestMutableFieldsOfAModel(t *testing.T) {
	c := newCluster(t)
	const was = `{id: m, poolRef: {name: p}, type: lora, baseModel: llama, source: s3://x, key: k, size: 1Gi, copies: {min: 1}}`
	c.Apply(model(was))
	for _, row := range []struct{ is, want string }{
		{`{poolRef: {name: p}, baseModel: llama, source: s3://x, key: k, size: 1024Mi}`, ""}, // the same size in another unit
		{`{id: m, poolRef: {name: p}, type: lora, baseModel: llama, source: s3://x, key: k, size: 1Gi, copies: {min: 2, max: 5}, pinned: true, serviceTime: 15ms}`, ""},
		{
			strings.Replace(was, "id: m", "id: other", 1),
			"spec.id: Forbidden: only copies, pinned and serviceTime of a Model may change: delete the Model and create one with another name and id",
		},
		{strings.Replace(was, "name: p", "name: q", 1), "spec.poolRef: Forbidden"},
		{strings.Replace(was, "type: lora", "type: sklearn", 1), "spec.type: Forbidden"},
		{strings.Replace(was, "baseModel: llama, ", "", 1), "spec.baseModel: Forbidden"},
		{strings.Replace(was, "s3://x", "s3://y", 1), "spec.source: Forbidden"},
		{strings.Replace(was, "key: k", "key: l", 1), "spec.key: Forbidden"},
		{strings.Replace(was, "key: k", "storage: {key: k}", 1), "spec.storage: Forbidden"},
		{strings.Replace(was, "size: 1Gi, ", "", 1), "spec.size: Forbidden"},
		{strings.Replace(was, "size: 1Gi", "size: 2Gi", 1), "spec.size: Forbidden"},
	} {
		o := apiserver.ReadObjects(t, model(row.is))[0]
		current, err := c.At(o).Get(t.Context(), "m", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.SetNamespace("default")
		o.SetResourceVersion(current.GetResourceVersion())
		_, server := c.At(o).Update(t.Context(), o, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		if (server == nil) != (row.want == "") || server != nil && !strings.Contains(server.Error(), row.want) {
			t.Errorf("to %s the API server says %v, want %q", row.is, server, row.want)
		}
		folder := objects.CheckModelChange(typed(t, was), typed(t, row.is))
		if (len(folder) == 0) != (row.want == "") {
			t.Errorf("to %s a folder says %v, want %q", row.is, folder, row.want)
		}
	}
}

func TestImmutableFieldsOfAVModel(t *testing.T) {
	c := newCluster(t)
	const was = `{id: v, poolRef: {name: p}, target: m}`
	c.Apply(vmodel(was))
	for _, row := range []struct{ is, want string }{
		{`{poolRef: {name: p}, target: n2, canary: {target: o, percent: 5}, owner: us}`, ""},
		{
			strings.Replace(was, "id: v", "id: other", 1),
			"spec.id: Forbidden: the id of a VModel may not change: delete the VModel and create one with another name and id",
		},
		{strings.Replace(was, "name: p", "name: q", 1), "spec.poolRef: Forbidden: the pool of a VModel may not change"},
	} {
		o := apiserver.ReadObjects(t, vmodel(row.is))[0]
		current, err := c.At(o).Get(t.Context(), "v", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.SetNamespace("default")
		o.SetResourceVersion(current.GetResourceVersion())
		_, server := c.At(o).Update(t.Context(), o, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		if (server == nil) != (row.want == "") || server != nil && !strings.Contains(server.Error(), row.want) {
			t.Errorf("to %s the API server says %v, want %q", row.is, server, row.want)
		}
		var a, b v1alpha1.VModel
		if err := errors.Join(yaml.Unmarshal([]byte(vmodel(was)), &a), yaml.Unmarshal([]byte(vmodel(row.is)), &b)); err != nil {
			t.Fatal(err)
		}
		if folder := objects.CheckVModelChange(&a, &b); (len(folder) == 0) != (row.want == "") {
			t.Errorf("to %s a folder says %v, want %q", row.is, folder, row.want)
		}
	}
}

// typed is a Model of the spec.
func typed(t *testing.T, spec string) *v1alpha1.Model {
	t.Helper()
	var m v1alpha1.Model
	if err := yaml.Unmarshal([]byte(model(spec)), &m); err != nil {
		t.Fatal(err)
	}
	return &m
}
