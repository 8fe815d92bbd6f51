// Package wire contains the names that extproc, envoy.yaml, control and other gateways must spell
// alike: headers, and namespaces and keys of metadata. A test compares envoy.yaml with them.
package wire

import "strings"

// Names of the endpoint-picker protocol, version 1.0.0. The destination is sent to the data plane
// as a request header and as dynamic metadata, with the same key and value: "ip:port", or several
// with commas. Each is tried if those before it did not serve the request.
const (
	// DestinationHeader is the name of the header, and the key in [DestinationNamespace].
	DestinationHeader = "x-gateway-destination-endpoint"
	// ScoresKey is the key in [DestinationNamespace] of a struct that maps endpoints to the
	// predicted seconds to the first token; only with extproc's --emit-endpoint-scores.
	ScoresKey = "x-gateway-destination-endpoint-scores"
	// DestinationNamespace is the namespace of dynamic metadata that Envoy's clusters read.
	DestinationNamespace = "envoy.lb"

	// SubsetNamespace is the metadata of a request in which a data plane lists, under SubsetKey,
	// the endpoints that it allows.
	SubsetNamespace = "envoy.lb.subset_hint"
	SubsetKey       = "x-gateway-destination-endpoint-subset"
	// ServedKey is the key in [DestinationNamespace] under which a data plane reports, with a
	// response, which endpoint served it.
	ServedKey = "x-gateway-destination-endpoint-served"
)

// ControlHeaders are the headers by which clients and gateways communicate with endpoint pickers.
// They are removed from requests before an engine gets them. They are those of the endpoint-picker
// protocol, of its conformance suite, and of llm-d's picker, with their older forms. The
// destination is not among them, because the protocol requires it, nor are headers that a body
// parser sets for routing.
var ControlHeaders = []string{
	SubsetKey, ServedKey, "x-gateway-destination-endpoint-scores", "x-gateway-destination-endpoint-fallbacks",
	"x-gateway-inference-objective", "x-gateway-inference-fairness-id", "x-gateway-model-name-rewrite",
	"x-slo-ttft-ms", "x-slo-tpot-ms", "epp-profile", SelectionHeader,
}

// ControlPrefix is the prefix of all other [ControlHeaders].
const ControlPrefix = "x-llm-d-"

// ChoicePrefix is the prefix of headers that choose an endpoint, or the behaviour of a picker or of
// Envoy. Headgate's own Envoys remove them from every request first.
const ChoicePrefix = "x-gateway-"

// Headers of the protocol's conformance suite, which extproc uses only if configured to.
const (
	// SelectionHeader lists the endpoints to pick, in order: "ip" or "ip:port", with commas.
	SelectionHeader = "test-epp-endpoint-selection"
	// ServedHeader reports to the client which endpoint served.
	ServedHeader = "x-conformance-test-served-endpoint"
)

// RequestNamespace is the metadata in which Envoy's own body parser passes the model to an extproc
// that sees no bodies.
const (
	RequestNamespace = "gateway.request"
	RequestModel     = "model"
)

// Resource names under which Envoy subscribes to the endpoints of all pools together:
// EndpointsCluster for most requests, and CallsCluster for gRPC calls.
const (
	EndpointsCluster = "endpoints"
	CallsCluster     = "calls"
)

// ExtprocCluster is Envoy's name for the extproc beside it.
const ExtprocCluster = "extproc"

// PoolCluster returns the resource name under which Envoy subscribes to the endpoints of an
// InferencePool.
func PoolCluster(namespace, name string) string { return poolPrefix + namespace + "/" + name }

// PoolCallsCluster is PoolCluster for gRPC calls.
func PoolCallsCluster(namespace, name string) string { return poolCallsPrefix + namespace + "/" + name }

// CallsOf is PoolCallsCluster for a pool in the form "namespace/name".
func CallsOf(pool string) string { return poolCallsPrefix + pool }

// PoolOf returns the pool, "namespace/name", of a name from [PoolCluster] or [PoolCallsCluster],
// and false for any other name.
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

// Names that control and extproc share for the Envoys of a Gateway. Clients cannot set headers that
// begin with x-gateway-, which are removed from their requests.
const (
	// PoolHeader is the header in which extproc names the cluster, as in [PoolCluster], of a
	// request whose pool it found by the model.
	PoolHeader = "x-gateway-pool-cluster"
	// ListenerMetadata is the metadata of an ext_proc stream that names the listener, and so the
	// models that requests may name.
	ListenerMetadata = "x-gateway-listener"
	// PoolMetadata is the metadata of an ext_proc stream that names the pool, "namespace/name", if
	// the route names one.
	PoolMetadata = "x-gateway-pool"
	// RewriteMetadata is the metadata of an ext_proc stream that describes how Envoy changes the
	// path after extproc has seen it, as in [Rewrite.String]. It is absent if Envoy does not.
	RewriteMetadata = "x-gateway-rewrite"
)

// Names that extproc and its relay share.
const (
	// RelayTokenHeader carries the encrypted relay token of a request to the relay and back.
	RelayTokenHeader = "x-headgate-relay-token"
	// BackMetadata is the metadata of an ext_proc stream that names the socket at which the Envoy
	// takes requests from the relay, in the folder of extproc's socket. BackSocket is its name in
	// Headgate's Envoys.
	BackMetadata = "x-gateway-back"
	BackSocket   = "back.sock"
	// ClientHeader has the name of the client whose API key Envoy accepted, for the engine.
	// Clients cannot set it.
	ClientHeader = "x-headgate-client"
	// TenantPrefix and ProgramPrefix begin the names of request headers that identify tenants and
	// programs. Envoy forwards all such headers to extproc.
	TenantPrefix  = "x-tenant-"
	ProgramPrefix = "x-program-"
	// FallbackHeader is the header of a response that the fallback of an LLMRoute served: the name
	// of the fallback's pool, or baseModel for the base model of the pool that the request was for.
	FallbackHeader = "x-headgate-fallback"
	// MissingHeader is the header in which Envoy reports to the relay which endpoints lack the
	// model, as in [UsageMissing].
	MissingHeader = "x-gateway-missing"
	// StoppingHeader is the header in which Envoy reports to the relay which endpoints are
	// stopping, as in [UsageStopping].
	StoppingHeader = "x-gateway-stopping"
	// FinalHeader marks a response of the relay as final, so that Envoy does not retry it. Envoy
	// removes the header.
	FinalHeader = "x-gateway-final"
)

// PayloadsMetadata is the metadata of an ext_proc stream that carries copies of a request and its
// response, and expects no replies.
const PayloadsMetadata = "x-gateway-payloads"

// Rewrite is how a route changes the path of a request.
type Rewrite struct {
	// Prefix is the part of the path that is replaced; empty means the whole path.
	Prefix string
	With   string
}

// String returns Prefix and With, separated by a space, which no path contains.
func (r Rewrite) String() string { return r.Prefix + " " + r.With }

// ParseRewrite parses the result of String. Any other text gives a Rewrite that changes nothing.
func ParseRewrite(text string) Rewrite {
	prefix, with, ok := strings.Cut(text, " ")
	if !ok {
		return Rewrite{"/", "/"}
	}
	return Rewrite{prefix, with}
}

// Path returns the path after Envoy has rewritten it. The path must have the prefix, and its query
// is kept. Where prefix and rest meet, slashes are neither doubled nor lost.
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

// ControlName is the DNS name in the certificate that control presents to Envoys, whatever name
// they use to reach it.
const ControlName = "control.headgate.dev"

// ElsewhereHeader marks a response by which an engine asks for a retry at another endpoint: its
// queue is full, it is stopping, or it lacks the model. Envoy's configuration sets it, retries at
// the next pick because of it, and removes it.
const ElsewhereHeader = "x-gateway-elsewhere"

// ErrorHeader carries the error code of a local reply to Envoy's access log. Envoy's configuration
// sets and removes it.
const ErrorHeader = "x-gateway-error"

// AuthorizationHeader is the header in which engines may expect a token. Clients may use it for
// other purposes.
const AuthorizationHeader = "authorization"

// TimeoutHeader limits the duration of a request in Envoy's router, in milliseconds.
const TimeoutHeader = "x-envoy-upstream-rq-timeout-ms"

// RetriesHeader limits the number of retries in Envoy's router, in place of the route's own limit.
const RetriesHeader = "x-envoy-max-retries"

// ModelHeader is a header that body parsers of other gateways set. It is not trusted in requests of
// clients.
const ModelHeader = "x-gateway-model-name"

// PickNamespace is the dynamic metadata in which extproc sends its decision. Envoy copies it into
// the access-log record, so that extproc need not remember the decision, and may restart meanwhile.
const PickNamespace = "gateway.pick"

// Keys in [PickNamespace].
const (
	PickRoute  = "route"  // namespace/name of the LLMRoute, a string
	PickPool   = "pool"   // namespace/name of the InferencePool, a string
	PickModel  = "model"  // the engine's own name of the model, a string
	PickReason = "reason" // why the policy chose this endpoint, a string
	PickStream = "stream" // whether the client asked for a stream, a bool
	PickID     = "id"     // decision id, a string; ends the lease of a request in flight
	// PickNoUsage is true if the answer is a stream in which the engine states token usage only
	// unasked, a bool; absent otherwise. Envoy then does not parse each event.
	PickNoUsage = "no_usage"
	// PickHold is how long the request was queued for its model, in microseconds, a number; absent
	// if it was not queued.
	PickHold = "hold_us"
	// PickWaitFor is what the request waited for last: endpoint, copy, room, turn or control, a
	// string; absent if it was not queued. PickBand is the priority of its route, a number; absent
	// if it is 0.
	PickWaitFor = "wait_for"
	PickBand    = "band"
	// PickBytes is the size of the prompt in bytes, a number. PickFirstToken is the predicted time
	// from the request's last byte to the first token, in microseconds, a number. Both are absent
	// if nothing was predicted.
	PickBytes      = "prompt_bytes"
	PickFirstToken = "first_token_us"
	// PickAdapter is the predicted residency of the request's adapter: storage, host, slot or
	// NoAdapter, a string. PickLoad is the part of PickFirstToken for the load and the frontend
	// overhead, in microseconds, a number. Both are absent if the first token is no measure of
	// these.
	PickAdapter = "adapter"
	PickLoad    = "load_us"
	// PickAmong is how many requests the endpoint had when this one was sent, including it, a
	// number; absent for requests with tokens.
	PickAmong = "among"
	// NoAdapter is the value for a request for a base model.
	NoAdapter = "none"
	// PickVModel is the VModel that the request named, a string. PickRelay is true if the relay
	// sent the request, a bool. Each is absent otherwise.
	PickVModel = "vmodel"
	PickRelay  = "relayed"
	// PickStored is the id of the stored response that the request asks each pick for, a string; it
	// is set if the endpoint with the response is unknown. PickEverybody is true if the picks
	// include every endpoint that may have it, a bool. Both are absent for all other requests.
	PickStored    = "stored"
	PickEverybody = "everybody"
	// PickUnlisted is set for a copy that no list of the engine shows, a bool. It is true if
	// NOT_FOUND, with any message, means that the engine has lost the copy, and false if NOT_FOUND
	// has turned out to be the model's own answer. PickAgain is true if the request is sent once
	// more, a bool; absent otherwise.
	PickUnlisted = "unlisted"
	PickAgain    = "again"
	// PickUnavailable is false if the request must not be retried after UNAVAILABLE, or 503 without
	// Retry-After, a bool; absent if it may be.
	PickUnavailable = "unavailable"
	// PickMessages is true if extproc reads the messages of a call, a bool; absent otherwise. If
	// extproc rejected one of the messages, PickRefused is the gRPC status that replaces the
	// engine's, and PickWords the message for it, encoded as in grpc-message. Both are strings, and
	// absent otherwise.
	PickMessages = "messages"
	PickRefused  = "refused"
	PickWords    = "words"
	// PickFallback is why policy proposal decided in place of latency, a string; absent if it did
	// not.
	PickFallback = "fallback"
	// PickFallbackName is the value of [FallbackHeader], a string; absent unless a fallback serves
	// the request.
	PickFallbackName = "fallback_name"
	// BaseModelFallback is this value if the base model of the request's own pool serves it.
	BaseModelFallback = "baseModel"
	// PickExpected has what the policy compared of this endpoint, and PickRunnerUp that of the next
	// best one; structs, only with extproc's --explain-picks.
	PickExpected = "expected"
	PickRunnerUp = "runner_up"
)

// RateLimitNamespace is the dynamic metadata in which extproc sends the state of a route's limits.
// Envoy adds each key as a header of the response; all values are strings. A key is absent if
// nothing limits that number, and the namespace is absent for a route without limits.
const RateLimitNamespace = "gateway.ratelimit"

// Keys in [RateLimitNamespace], and the headers of that name in responses. They are OpenAI's: the
// limit per minute, how much of it is left, and the time until all of it is left, such as 6m0s or
// 120ms. If both the route and the tenant have a limit, they show the one with less left.
const (
	RateLimitRequests          = "x-ratelimit-limit-requests"
	RateLimitTokens            = "x-ratelimit-limit-tokens"
	RateLimitRemainingRequests = "x-ratelimit-remaining-requests"
	RateLimitRemainingTokens   = "x-ratelimit-remaining-tokens"
	RateLimitResetRequests     = "x-ratelimit-reset-requests"
	RateLimitResetTokens       = "x-ratelimit-reset-tokens"
)

// RateLimitHeaders are the keys in [RateLimitNamespace].
var RateLimitHeaders = []string{
	RateLimitRequests, RateLimitTokens, RateLimitRemainingRequests, RateLimitRemainingTokens,
	RateLimitResetRequests, RateLimitResetTokens,
}

// UsageNamespace is the dynamic metadata that Envoy's own filters read from engines' responses.
const UsageNamespace = "gateway.usage"

// Keys in [UsageNamespace].
const (
	UsagePrompt     = "prompt"     // prompt tokens, a number
	UsageCompletion = "completion" // completion tokens, a number
	// UsageInput is the number of prompt tokens under the name that OpenAI's responses and
	// Anthropic's messages use. Messages may exclude tokens that were read from a cache,
	// UsageCacheRead, and written to it, UsageCacheCreation. The keys with Begun are those in the
	// first event of a stream of messages. All are numbers.
	UsageInput              = "input"
	UsageCacheRead          = "cache_read"
	UsageCacheCreation      = "cache_creation"
	UsageBegunInput         = "begun_input"
	UsageBegunCacheRead     = "begun_cache_read"
	UsageBegunCacheCreation = "begun_cache_creation"
	// UsageError is the type of the error at the top of a response, and UsageErrorCode its code,
	// strings; absent if the error has none.
	UsageError     = "error"
	UsageErrorCode = "error_code"
	// UsageAnswered is true if the response to a call with [PickMessages] has begun, a bool; absent
	// otherwise.
	UsageAnswered = "answered"
	// UsageOutput is the time of the first output of a stream whose body begins without output, in
	// microseconds of Unix time, or [NoOutput]. UsageOpened is the time of the stream's first event
	// that may contain the first token. Both are strings, and absent for all other responses.
	UsageOutput    = "output"
	UsageOpened    = "opened"
	NoOutput       = "none"
	UsageLoad      = "load"      // the engine's load report, verbatim, a string
	UsageID        = "id"        // the id of the response, a string
	UsageElsewhere = "elsewhere" // endpoints that asked for a retry elsewhere, a string like [DestinationHeader]'s
	UsageStopping  = "stopping"  // endpoints in UsageElsewhere that are stopping
	UsageMissing   = "missing"   // endpoints that answered that they lack the model
	UsageWithout   = "without"   // endpoints before the last that answered 404 to a request with [PickStored]
)

// ErrorNamespace is the dynamic metadata in which Envoy passes an engine's error to extproc: its
// message under ErrorMessage, or the whole error, in JSON, under ErrorWhole. It is not
// in Envoy's own access log, since the message may quote a prompt.
const (
	ErrorNamespace = "gateway.engine_error"
	ErrorMessage   = "message"
	ErrorWhole     = "error"
)

// Tags of the access-log record. Values are in microseconds unless a comment says otherwise, or
// "-".
const (
	TagFirstBody = "first_body_us" // from the request's last byte to the first byte of the response's body
	TagAnswered  = "answered_us"   // from the last byte sent to the engine to the last byte of its response
	TagCall      = "grpc_status"   // status of a gRPC call, as a number
	TagGateway   = "gateway_us"    // from the request's first byte to the first byte sent to the engine
)

// ReplyDetails is the prefix of the response code details of every reply by extproc itself.
// envoy.yaml keeps the bodies of these replies and rewrites only Envoy's own.
const ReplyDetails = "headgate"

// EngineGone is the error code of a request that extproc ended because its endpoint has gone. Its
// response code details are ReplyDetails, "_" and this code.
const EngineGone = "engine_gone"

// Reasons for which control does not load a model.
const (
	LoadFailed   = "load_failed"    // engines failed to load it, for another reason
	RankTooLarge = "rank_too_large" // the adapter's rank is larger than the engines accept
	FilesMissing = "files_missing"  // engines did not find the model's files
	NoEndpoint   = "no_endpoint"    // control reaches no endpoint that could load it
	CannotLoad   = "cannot_load"    // no engine of its pool can load models of its kind at run time
	NoLabels     = "no_labels"      // no endpoint has the labels that the pool's constraints require
	NoRoom       = "no_room"        // all loaded models are pinned, must stay, or were used more recently
	TooLarge     = "too_large"      // the model is larger than the memory of any endpoint
	UnknownModel = "unknown_model"  // no object and no ModelMesh client defines it
)

// ExtProcHealthService is the name under which data planes check extproc's health.
const ExtProcHealthService = "envoy.service.ext_proc.v3.ExternalProcessor"
