// Package wire holds the names that cross a wire: headers, metadata namespaces and keys that
// extproc, envoy.yaml and other gateways must spell alike. A test holds envoy.yaml to these names.
package wire

import "strings"

// The endpoint-picker protocol, version 1.0.0: the destination goes back to the data plane both as
// a request header and as dynamic metadata, under the same key and with the same value: "ip:port",
// or several of them with commas between, each to be tried if those before it did not serve.
const (
	// DestinationHeader is also the key in [DestinationNamespace].
	DestinationHeader = "x-gateway-destination-endpoint"
	// DestinationNamespace is the dynamic metadata namespace that Envoy's clusters read.
	DestinationNamespace = "envoy.lb"

	// SubsetNamespace is the metadata of a request in which a data plane says, under SubsetKey,
	// which endpoints it allows.
	SubsetNamespace = "envoy.lb.subset_hint"
	SubsetKey       = "x-gateway-destination-endpoint-subset"
	// ServedKey is the key in [DestinationNamespace] under which a data plane says, with a
	// response, who served.
	ServedKey = "x-gateway-destination-endpoint-served"
)

// ControlHeaders are the headers by which clients and gateways speak to endpoint pickers. No engine
// is to see them, so that they are removed from what is sent on: those of the endpoint-picker
// protocol and of its conformance suite, and those of the field's leading picker (its names and
// their older forms). The destination is not among them, for the protocol wants it set, nor are the
// names that a body parser sets for routes to match.
var ControlHeaders = []string{
	SubsetKey, ServedKey, "x-gateway-destination-endpoint-scores", "x-gateway-destination-endpoint-fallbacks",
	"x-gateway-inference-objective", "x-gateway-inference-fairness-id", "x-gateway-model-name-rewrite",
	"x-slo-ttft-ms", "x-slo-tpot-ms", "epp-profile", SelectionHeader,
}

// ControlPrefix begins the rest of [ControlHeaders].
const ControlPrefix = "x-llm-d-"

// ChoicePrefix begins the headers that choose for an endpoint picker or for Envoy. Headgate's own
// Envoys take them from every request before they look at it.
const ChoicePrefix = "x-gateway-"

// Headers of the protocol's conformance suite, which extproc obeys only when it is told to.
const (
	// SelectionHeader is "ip" or "ip:port", several with commas: the endpoints to pick, in this
	// order.
	SelectionHeader = "test-epp-endpoint-selection"
	// ServedHeader tells the client who served.
	ServedHeader = "x-conformance-test-served-endpoint"
)

// RequestNamespace is the metadata in which Envoy's own body parser gives the model to an extproc
// that sees no bodies.
const (
	RequestNamespace = "gateway.request"
	RequestModel     = "model"
)

// The names by which Envoy asks extproc for the endpoints of all pools as one: where they take gRPC
// calls, and where all other requests.
const (
	EndpointsCluster = "endpoints"
	CallsCluster     = "calls"
)

// ExtprocCluster is Envoy's name of the extproc beside it.
const ExtprocCluster = "extproc"

// PoolCluster returns the name by which Envoy asks extproc for the endpoints of an InferencePool.
func PoolCluster(namespace, name string) string { return poolPrefix + namespace + "/" + name }

// PoolCallsCluster is the same where these endpoints take gRPC calls.
func PoolCallsCluster(namespace, name string) string { return poolCallsPrefix + namespace + "/" + name }

// CallsOf is PoolCallsCluster of a pool, "namespace/name".
func CallsOf(pool string) string { return poolCallsPrefix + pool }

// PoolOf returns the pool, "namespace/name", whose cluster this is, as of [PoolCluster] or
// [PoolCallsCluster]; false if it is that of none.
func PoolOf(cluster string) (pool string, ok bool) {
	if pool, ok = strings.CutPrefix(cluster, poolCallsPrefix); ok {
		return pool, true
	}
	return strings.CutPrefix(cluster, poolPrefix)
}

const (
	poolPrefix      = "pool/"
	poolCallsPrefix = "calls/"
)

// Names that control and extproc agree on for the Envoys of a Gateway. What begins with x-gateway-
// is taken from clients' requests.
const (
	// PoolHeader is the header in which extproc names the cluster, as of [PoolCluster], of a
	// request whose pool follows from its model.
	PoolHeader = "x-gateway-pool-cluster"
	// ListenerMetadata is the metadata of an ext_proc stream that names the listener whose models
	// count.
	ListenerMetadata = "x-gateway-listener"
	// PoolMetadata is the metadata of an ext_proc stream that names the pool, "namespace/name",
	// where the route does.
	PoolMetadata = "x-gateway-pool"
	// RewriteMetadata is the metadata of an ext_proc stream that says how Envoy changes the path
	// after extproc has seen it, as of [Rewrite.String]; none if it does not.
	RewriteMetadata = "x-gateway-rewrite"
)

// Names that extproc and its relay agree on.
const (
	// RelayTokenHeader carries the relay token of a request, encrypted, to the relay and back.
	RelayTokenHeader = "x-headgate-relay-token"
	// BackMetadata is the metadata of an ext_proc stream that names the socket at which the Envoy
	// takes requests from the relay, in the folder of extproc's own. BackSocket is its name in
	// Headgate's Envoys.
	BackMetadata = "x-gateway-back"
	BackSocket   = "back.sock"
	// MissingHeader is the header in which Envoy tells the relay of the endpoints that have not the
	// model, as of [UsageMissing].
	MissingHeader = "x-gateway-missing"
	// StoppingHeader is the same of those that are stopping, as of [UsageStopping].
	StoppingHeader = "x-gateway-stopping"
	// FinalHeader marks an answer of the relay, which is not tried elsewhere; Envoy removes it.
	FinalHeader = "x-gateway-final"
)

// PayloadsMetadata is the metadata of an ext_proc stream that shows copies of a request and its
// answer, and asks for nothing.
const PayloadsMetadata = "x-gateway-payloads"

// Rewrite is how a route changes the path of a request.
type Rewrite struct {
	// Prefix is what is replaced; empty for the whole path.
	Prefix string
	With   string
}

// String is Prefix and With, with a space between, which no path has.
func (r Rewrite) String() string { return r.Prefix + " " + r.With }

// ParseRewrite reads what String writes; what it would not write changes nothing.
func ParseRewrite(text string) Rewrite {
	prefix, with, ok := strings.Cut(text, " ")
	if !ok {
		return Rewrite{"/", "/"}
	}
	return Rewrite{prefix, with}
}

// Path returns what Envoy makes of a path that fits the prefix, whose query stays. Slashes are
// neither doubled nor lost where the two meet.
func (r Rewrite) Path(path string) string {
	path, query, asked := strings.Cut(path, "?")
	with := strings.TrimRight(r.With, "/")
	switch rest := strings.TrimPrefix(path, strings.TrimRight(r.Prefix, "/")); {
	case r.Prefix == "":
		path = r.With
	case with == "":
		path = "/" + strings.TrimLeft(rest, "/")
	default:
		path = with + rest
	}
	if asked {
		path += "?" + query
	}
	return path
}

// ControlName is the DNS name of control in the certificate that it serves Envoys with, whatever
// name they reach it by.
const ControlName = "control.headgate.dev"

// ElsewhereHeader marks a response by which an engine asks for the request to be tried elsewhere:
// its queue is full, it is stopping, or it has no such model. Envoy's configuration sets it, goes
// on to the next pick by it, and removes it.
const ElsewhereHeader = "x-gateway-elsewhere"

// AuthorizationHeader is what engines may want a token in. Clients send it for reasons of their
// own.
const AuthorizationHeader = "authorization"

// TimeoutHeader bounds a whole request in Envoy's router, in milliseconds.
const TimeoutHeader = "x-envoy-upstream-rq-timeout-ms"

// RetriesHeader bounds how often Envoy's router tries a request again, in place of the route's own
// bound.
const RetriesHeader = "x-envoy-max-retries"

// ModelHeader is a name that other gateways' body parsers set. A client that sends it must not be
// believed.
const ModelHeader = "x-gateway-model-name"

// PickNamespace is the dynamic metadata that tells the access log what extproc decided. It comes
// back in the access-log record, so that an outcome needs nothing that extproc remembers: it
// survives a restart.
const PickNamespace = "gateway.pick"

// Keys in [PickNamespace].
const (
	PickRoute  = "route"  // namespace/name of the LLMRoute, a string
	PickPool   = "pool"   // namespace/name of the InferencePool, a string
	PickModel  = "model"  // the engine's own name of the model, a string
	PickReason = "reason" // why the policy took this endpoint, a string
	PickStream = "stream" // whether the client asked for a stream, a bool
	PickID     = "id"     // of the decision, a string; it ends the lease of a request in flight
	// PickHold is for how long the request was held for its model, in microseconds, a number;
	// absent where it was not held.
	PickHold = "hold_us"
	// PickBytes is how long the prompt is, in bytes, and PickFirstToken when its first token was
	// expected, in microseconds from when the request was whole, numbers; absent where nothing was
	// predicted.
	PickBytes      = "prompt_bytes"
	PickFirstToken = "first_token_us"
	// PickAdapter is where the adapter of the request was when it was picked, storage, host, slot
	// or NoAdapter, a string, and PickLoad what of PickFirstToken its load was to take, and what is
	// before an engine's queue, in microseconds, a number; absent where the first token tells
	// nothing of these.
	PickAdapter = "adapter"
	PickLoad    = "load_us"
	// PickAmong is how many requests the endpoint had when this one was sent, itself among them, a
	// number; absent of requests with tokens.
	PickAmong = "among"
	// NoAdapter is of a request for the model itself.
	NoAdapter = "none"
	// PickVModel is the VModel that the request named, a string, and PickRelay that the relay sent
	// it, a bool; absent where it is not so.
	PickVModel = "vmodel"
	PickRelay  = "relayed"
	// PickStored is the id of the stored response that nobody is known to have and that the request
	// asks each pick for, a string, and PickEverybody that the picks are all who might have it, a
	// bool; absent of all others.
	PickStored    = "stored"
	PickEverybody = "everybody"
	// PickUnlisted says of a copy that only control knows of whether NOT_FOUND, in whatever words,
	// is a sign that the engine has lost it: true, or false where that was found to be the model's
	// own answer; a bool, absent of copies that an engine lists. PickAgain says that the request is
	// sent once more, a bool; absent of others.
	PickUnlisted = "unlisted"
	PickAgain    = "again"
	// PickUnavailable is false if the request is not to go on from an endpoint that answers
	// UNAVAILABLE, or 503 without Retry-After; a bool, absent of requests that go on.
	PickUnavailable = "unavailable"
	// PickMessages says that extproc reads the messages of a call, a bool; absent of others.
	// PickRefused is the status of gRPC with which the call is to end in place of the engine's,
	// since extproc refused one of its messages, and PickWords are the words of that, encoded as
	// grpc-message has them; strings, absent of others.
	PickMessages = "messages"
	PickRefused  = "refused"
	PickWords    = "words"
	// PickExpected is why the policy took this endpoint, in seconds of each term, and PickRunnerUp
	// why not the next best one; structs, of extproc's --explain-picks.
	PickExpected = "expected"
	PickRunnerUp = "runner_up"
)

// UsageNamespace is the dynamic metadata that Envoy's own filters read from engines' responses.
const UsageNamespace = "gateway.usage"

// Keys in [UsageNamespace].
const (
	UsagePrompt     = "prompt"     // prompt tokens, a number
	UsageCompletion = "completion" // completion tokens, a number
	// UsageInput is the prompt tokens as OpenAI's responses and Anthropic's messages name them.
	// Messages may leave out what was read from a cache, UsageCacheRead, and written to it,
	// UsageCacheCreation. The keys of Begun are what the first event of a stream of messages
	// states. All are numbers.
	UsageInput              = "input"
	UsageCacheRead          = "cache_read"
	UsageCacheCreation      = "cache_creation"
	UsageBegunInput         = "begun_input"
	UsageBegunCacheRead     = "begun_cache_read"
	UsageBegunCacheCreation = "begun_cache_creation"
	// UsageError is the type of the error that an answer has at its top, or "unknown", and
	// UsageErrorCode its code, strings.
	UsageError     = "error"
	UsageErrorCode = "error_code"
	// UsageAnswered says that the answer to a call with [PickMessages] has begun, a bool; absent
	// before, and of others.
	UsageAnswered = "answered"
	// UsageOutput is when the first output of a stream came whose body begins without any, in
	// microseconds of Unix time, or [NoOutput]; it is absent of all others. UsageOpened is when
	// such a stream had its first event that may have come with the first token; both are strings.
	UsageOutput    = "output"
	UsageOpened    = "opened"
	NoOutput       = "none"
	UsageLoad      = "load"      // the engine's load report, verbatim, a string
	UsageID        = "id"        // the id of the answer, a string
	UsageElsewhere = "elsewhere" // the endpoints that asked for the request to be tried elsewhere, a string like [DestinationHeader]'s
	UsageStopping  = "stopping"  // those of them that did because they are stopping
	UsageMissing   = "missing"   // the endpoints that answered that they have no such model
	UsageWithout   = "without"   // the endpoints that answered 404 to a request with [PickStored], but for the last
)

// Tags of the access-log record, values in microseconds but where it says otherwise, or "-".
const (
	TagFirstBody = "first_body_us" // from the request's last byte to the first byte of the response's body
	TagAnswered  = "answered_us"   // from the last byte sent to the engine to the last byte of its response
	TagCall      = "grpc_status"   // of a gRPC call, its status as a number
	TagGateway   = "gateway_us"    // from the request's first byte to the first byte sent to the engine
)

// ReplyDetails begins the response code details of every reply that extproc itself gives.
// envoy.yaml leaves the bodies of those replies as they are and rewrites only Envoy's own.
const ReplyDetails = "headgate"

// EngineGone is the code, and with ReplyDetails and "_" before it the details, of a request that
// extproc ended because its endpoint has gone.
const EngineGone = "engine_gone"

// Reasons of control's for not loading a model.
const (
	LoadFailed   = "load_failed"    // engines failed to load it, for reasons of their own
	RankTooLarge = "rank_too_large" // the rank of the adapter is larger than the engines take
	FilesMissing = "files_missing"  // its files are not where engines look for them
	NoEndpoint   = "no_endpoint"    // control reaches no endpoint that could load it
	CannotLoad   = "cannot_load"    // the engines of its pool load no models while they run, or none of its kind
	NoLabels     = "no_labels"      // no endpoint has the labels that the pool's constraints require
	NoRoom       = "no_room"        // what the endpoints hold is pinned, must stay, or was used more recently
	TooLarge     = "too_large"      // it is larger than any endpoint
	UnknownModel = "unknown_model"  // no object and no client of control names it
)

// ExtProcHealthService is the name under which data planes ask for extproc's health.
const ExtProcHealthService = "envoy.service.ext_proc.v3.ExternalProcessor"
