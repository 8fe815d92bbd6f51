// Where the schemas of other gateways' objects come from, for the tests of manifests: CRDs are read out of the modules'
// folders, and nothing of them is built. `go mod tidy` would find no import and remove them all. GIE's InferencePool is
// in Istio's tests: its own module cannot be had everywhere.
module github.com/headgate/headgate/tools/gateways

go 1.26.7

require (
	github.com/envoyproxy/gateway v1.9.1
	istio.io/api v1.31.1
	istio.io/istio v0.0.0-20260827124520-eed52ebb66ad
	sigs.k8s.io/gateway-api v1.6.3
)
