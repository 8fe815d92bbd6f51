package main

// module is the path of this module with a slash: the prefix of its packages' import paths.
const module = "github.com/headgate/headgate/"

// programs has the folder of each program, and the maximum number of lines of its package main
// without tests. The programs extproc and control have none: they are commands of headgate. The
// agent is a program of its own below control, because only it is linked with the clouds' client
// libraries.
var programs = []struct {
	folder string
	lines  int
}{
	{"headgate", 350},
	{"extproc", 0},
	{"control", 0},
	{"control/agent", 50},
	{"bench", 350},
	{"packaging", 0},
}

// packaging is the folder of the programs that make releases and try them. bench uses its images.
const packaging = "packaging"

// wiring is the package that makes one program of headgate, extproc and control: it may import
// packages of each.
const wiring = "headgate"

// apart are the packages of the agent, which wiring must not reach: the clouds' client libraries
// are larger than all of Headgate.
const apart = "control/agent"

// mainLines is the maximum number of lines of a program's main.go.
const mainLines = 150

// maxMethods is the maximum number of methods of a type, including those of embedded types. Any
// method can change any field, and a reader cannot keep track of more methods.
const maxMethods = 60

// pure are the packages whose functions depend only on their arguments. Tests and simulations can
// call them without a network, a clock or goroutines. They do no I/O, do not wait, take no locks
// and have no state of their own. The same holds for all packages of this module that they import.
var pure = []string{
	"extproc/openai", "extproc/kserve", "extproc/prefix", "extproc/route", "extproc/pick", "extproc/settings",
	"extproc/flow/queue", "extproc/flow/turns", "extproc/flow/late",
	"extproc/fleet/endpointstate", "extproc/outcome", "extproc/decisions/ring",
	"extproc/decode", "extproc/relay/relaytoken", "extproc/endpoints", "extproc/transcode", "extproc/payload/sink",
	"extproc/limits/bucket",
	"control/place/decide", "control/attach/plan", "control/attach/services", "control/conditions", "control/attach/envoy",
	"control/events", "control/attach/order",
	"control/attach/bisect", "control/attach/cache", "control/pods/gateway", "control/provision/estimate", "control/provision/planner",
	"control/provision/problem",
	"control/provision/report", "control/profile/survey", "control/agent/storage",
	"internal/attach", "internal/engine", "internal/hash", "internal/des", "internal/objects", "internal/profile", "internal/profile/fit",
	"internal/profile/learn", "internal/profile/table",
	"internal/sim", "internal/workload", "internal/display", "headgate/envoy/supervise",
	"headgate/doctor/diagnosis",
}

// impureStd are the packages of the standard library that a pure package may not import. Some
// packages below them are excepted.
var impureStd = []struct {
	path   string
	except []string
	why    string
}{
	{"net", []string{"net/netip", "net/url"}, "a pure package uses no network"}, // the exceptions are types and parsers
	{"os", nil, "a pure package reads no files and no environment"},
	{"log", nil, "a pure package returns results and errors instead of logging them"},
	{"context", nil, "a pure package does not wait"},
	{"sync", []string{"sync/atomic"}, "a pure package shares nothing but counters"},
	{"syscall", nil, "a pure package makes no system calls"},
	{"io/fs", nil, "a pure package reads no files"},
	{"crypto/rand", nil, "randomness is an argument"},
}

// pureModules are the packages of other modules that a pure package may import: types, parsers and
// algorithms. A slash at the end includes all packages below.
var pureModules = []string{
	"github.com/tidwall/gjson",                      // JSON parser
	"github.com/cespare/xxhash/v2",                  // hash function
	"sigs.k8s.io/yaml",                              // YAML parser
	"k8s.io/apimachinery/pkg/apis/meta/v1",          // API types
	"k8s.io/apimachinery/pkg/api/resource",          // API types
	"k8s.io/apimachinery/pkg/runtime",               // deep copies, and the scheme of clients
	"k8s.io/apimachinery/pkg/runtime/schema",        // API types
	"k8s.io/apimachinery/pkg/util/validation",       // validation of names
	"k8s.io/apimachinery/pkg/util/validation/field", // errors about fields of objects
	"k8s.io/apimachinery/pkg/labels",                // label selectors
	"k8s.io/apimachinery/pkg/util/intstr",           // API types
	"k8s.io/api/",                                   // API types
	"k8s.io/utils/ptr",                              // pointers to values
	"sigs.k8s.io/gateway-api/apis/v1",               // API types
	"sigs.k8s.io/gateway-api/pkg/features",          // names of features

	// Envoy's messages and their encodings.
	"github.com/envoyproxy/go-control-plane/envoy/config/", "github.com/envoyproxy/go-control-plane/envoy/extensions/",
	"github.com/envoyproxy/go-control-plane/envoy/type/", "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3",
	"google.golang.org/protobuf/proto", "google.golang.org/protobuf/encoding/protojson", "google.golang.org/protobuf/encoding/protowire",
	"google.golang.org/protobuf/types/known/",

	"github.com/klauspost/compress/zstd", "github.com/andybalholm/brotli", // decompression

	"gonum.org/v1/gonum/stat/distuv",               // distributions; the random source is an argument
	"github.com/hashicorp/golang-lru/v2/simplelru", // an LRU cache

	"github.com/prometheus/client_model/go", // types of metrics
	"github.com/prometheus/common/expfmt",   // parser of metrics pages
	"github.com/prometheus/common/model",    // types of metrics
}

// confined are libraries that only the listed packages may import. A slash at the end includes all
// packages below.
var confined = []struct {
	library, why string
	rooms        []string
}{
	{
		"google.golang.org/grpc/", "only packages at the edge speak gRPC",
		[]string{
			"extproc/serve", "extproc/codec", "extproc/stream", "extproc/accesslog", "extproc/placementclient", "extproc/payload",
			"control/serve", "control/attach/ads", "control/place/loader", "control/place/placementserver", "control/place/modelmesh",
			"control/importer", "control/agent/manage", "control/agent/command",
			"api/", "bench/", "headgate/simulated/",
		},
	},
	{
		"github.com/envoyproxy/go-control-plane/", "only packages that talk to Envoy use its messages",
		[]string{
			"extproc/serve", "extproc/stream", "extproc/accesslog", "extproc/eds", "extproc/payload", "control/attach/envoy",
			"control/attach/order", "control/attach/ads", "bench/ext",
		},
	},
	{
		"github.com/aws/", "the clouds' client libraries are linked into the agent alone", []string{"control/agent/fetch"},
	},
	{
		"github.com/Azure/", "the clouds' client libraries are linked into the agent alone", []string{"control/agent/fetch"},
	},
	{
		"google.golang.org/api/", "the clouds' client libraries are linked into the agent alone", []string{"control/agent/fetch"},
	},
	{
		"github.com/google/go-containerregistry/", "only the agent pulls images, and only packaging makes them",
		[]string{"control/agent/fetch", "packaging/oci"},
	},
	{
		"golang.org/x/oauth2/", "the clouds' client libraries are linked into the agent alone", []string{"control/agent/fetch"},
	},
	{
		"k8s.io/client-go/", "only one package knows where objects come from",
		[]string{
			"internal/objects/kube", "control/lifecycle", "control/election", "control/pods", "control/statuswriter", "bench/cluster",
			"headgate/doctor", "test/apiserver",
		},
	},
	{
		"sigs.k8s.io/controller-runtime/", "only one package knows where objects come from",
		[]string{"internal/objects/kube", "control/lifecycle", "control/statuswriter"},
	},
	{
		"k8s.io/api/", "other packages use objects.Pod; control creates its objects in control/pods; api uses Kubernetes' resource lists",
		[]string{
			"internal/objects/kinds", "internal/objects/kube", "control/pods", "control/pods/gateway", "control/statuswriter", "api/v1alpha1",
			"headgate/doctor", "test/apiserver",
		},
	},
}

// floor is a set of packages of a house that do not import each other (see houses).
type floor struct {
	rooms []string
	why   string // why these packages are on this floor
}

// trying is the program that may import packages below test, because it tests Headgate.
const trying = "bench"

// reserved are packages below internal that fewer than two programs import, and why they stay
// there.
var reserved = []struct{ room, why string }{
	{"internal/profile/fit", "control uses it now, and pick may use it for corrections"},
}

// houses are the programs and the shared folders. Each house has floors, listed from the top down.
// A package may import only those packages of its house that are on lower floors. Every package is
// on exactly one floor.
var houses = [][]floor{
	{
		{[]string{"extproc/command"}, "the command connects the packages"},
		{[]string{"extproc/options"}, "flags set what every package below needs"},
		{[]string{"extproc/serve"}, "it connects the listeners"},
		{
			[]string{
				"extproc/stream", "extproc/accesslog", "extproc/placementclient", "extproc/scrape", "extproc/eds", "extproc/relay",
				"extproc/payload",
			},
			"each talks to one neighbour: Envoy, control, engines or sinks",
		},
		{
			[]string{"extproc/flow", "extproc/metrics", "extproc/decisions", "extproc/limits"},
			"queues and metrics use the fleet; the record of decisions answers queries; limits lock their buckets",
		},
		{[]string{"extproc/fleet"}, "it publishes snapshots for pick"},
		{[]string{"extproc/endpoints"}, "the state of endpoints for operators"},
		{[]string{"extproc/fleet/endpointstate"}, "the state of endpoints in pick's types"},
		{
			[]string{"extproc/settings", "extproc/relay/relaytoken", "extproc/transcode", "extproc/decisions/ring"},
			"pool settings, relay tokens, the conversion of V2 requests, and the last decisions in memory",
		},
		{[]string{"extproc/payload/sink"}, "payloads are copies of parsed requests"},
		{[]string{"extproc/flow/late"}, "predictions of waits in the queue"},
		{
			[]string{
				"extproc/openai", "extproc/kserve", "extproc/route", "extproc/flow/queue", "extproc/flow/turns", "extproc/pick",
				"extproc/outcome",
				"extproc/drain", "extproc/install", "extproc/eppflags", "extproc/decode", "extproc/limits/bucket", "extproc/processing",
			},
			"the core, and packages that depend on no other",
		},
		{[]string{"extproc/prefix", "extproc/codec"}, "openai hashes prompts with the first; messages decode themselves with the second"},
	},
	{
		{[]string{"control/command", "control/agent"}, "the command of control connects its packages; the agent's main calls its command"},
		{[]string{"control/agent/command"}, "it connects the packages of the agent"},
		{[]string{"control/agent/manage"}, "it serves what drivers call, and calls engines with drivers"},
		{
			[]string{"control/lifecycle", "control/importer"},
			"a control runs from its start to its end, alone or in a cluster; the other is a command that prints objects as clients register them",
		},
		{
			[]string{
				"control/metrics", "control/serve", "control/election", "control/pods", "control/statuswriter",
				"control/prestop", "control/provision/plan",
			},
			"each talks to one neighbour: users, clients, or the API server for one purpose",
		},
		{[]string{"control/attach/controller"}, "it turns objects into Envoy's configuration"},
		{
			[]string{"control/attach/ads", "control/attach/routes", "control/attach/bootstrap", "control/profile", "control/pods/gateway"},
			"the first serves Envoys, the next three are commands, and the last is what Envoys run in",
		},
		{
			[]string{
				"control/attach/envoy", "control/attach/services", "control/attach/certificates", "control/attach/bisect",
				"control/place", "control/place/placementserver", "control/place/modelmesh",
			},
			"the first use plans: as Envoy's configuration, for endpoints and certificates, or for rejected routes; the others are the neighbours of decide: engines, extprocs and clients",
		},
		{
			[]string{"control/conditions", "control/agent/adapters"},
			"the first uses plans, and placement has conditions too; the other fetches files for engines",
		},
		{
			[]string{
				"control/attach/plan", "control/attach/order", "control/attach/pki", "control/profile/probe", "control/provision/problem",
				"control/provision/report", "control/agent/files",
			},
			"plans and the order of updates; probes of servers; problems and reports of capacity plans; files from storage",
		},
		{
			[]string{
				"control/place/loader", "control/place/decide", "control/place/store", "control/place/lending", "control/broadcast",
				"control/attach/cache", "control/provision/planner", "control/profile/survey", "control/events", "control/agent/fetch",
				"control/agent/layout",
			},
			"drivers of engines, placement decisions and their records, and the division of limits; broadcast and cache; the planner; the plan of a survey; which Events are due; what storage serves; folders of engines",
		},
		{
			[]string{"control/provision/estimate", "control/agent/storage", "control/agent/relay", "control/keylock"},
			"the first simulates how long queries take; the others describe where files of models are, pass connections to an engine, and have locks by key",
		},
	},
	{
		{[]string{"packaging/release", "packaging/try"}, "programs that make a release, and try one"},
		{[]string{"packaging/oci"}, "container images"},
	},
	{
		{[]string{"bench", "bench/e2e", "bench/cluster/e2e", "bench/cluster/pause"}, "programs, and tests of whole programs"},
		{[]string{"bench/conformance"}, "Gateway API's conformance suite, on the cluster"},
		{[]string{"bench/flow"}, "how tenants share the fleet of bench fleet"},
		{[]string{"bench/cost"}, "what a request costs, with the requests of bench ext"},
		{
			[]string{
				"bench/agent", "bench/cluster", "bench/ext", "bench/fleet", "bench/place", "bench/provision",
			},
			"what users start",
		},
		{[]string{"bench/envoy", "bench/image"}, "tests of envoy.yaml, and images of the programs"},
		{[]string{"bench/pace", "bench/traffic", "bench/chart", "bench/leader"}, "when requests are sent, those of simulated fleets, charts, and which control leads"},
	},
	{
		{[]string{"headgate"}, "main is the table of commands"},
		{
			[]string{
				"headgate/run", "headgate/simulated", "headgate/status", "headgate/explain", "headgate/drain", "headgate/doctor", "headgate/envoy",
			},
			"commands",
		},
		{[]string{"headgate/rig"}, "it runs the programs as processes"},
		{[]string{"headgate/envoy/find", "headgate/envoy/adapt"}, "each does one thing for an Envoy that is to run"},
		{[]string{"headgate/simulated/runtime", "headgate/simulated/repository"}, "they wrap the simulated engine"},
		{
			[]string{"headgate/simulated/llm", "headgate/envoy/supervise", "headgate/doctor/diagnosis"},
			"the simulated engine; when Envoys start and end; what is wrong",
		},
	},
	{
		{
			[]string{"internal/objects/source", "internal/configdump"},
			"it chooses the source of objects; it prints the effective configuration",
		},
		{
			[]string{"internal/objects/dir", "internal/objects/kube", "internal/objects/resolve", "internal/placementproto"},
			"each reads objects from one place, or converts them to messages",
		},
		{[]string{"internal/query"}, "queries about the state of extprocs, at listeners on loopback"},
		{[]string{"internal/attach"}, "which routes attach to which listeners"},
		{[]string{"internal/objects/kinds"}, "the kinds, for folders and API servers"},
		{[]string{"internal/objects", "internal/sim"}, "the World, the model of an engine"},
		{[]string{"internal/profile/table"}, "built-in profiles"},
		{
			[]string{"internal/profile/fit", "internal/profile/learn"},
			"profiles are fitted to measurements and corrected by engines' metrics",
		},
		{[]string{"internal/cli"}, "command lines print versions"},
		{
			[]string{
				"internal/version", "internal/engine", "internal/hash", "internal/des", "internal/profile", "internal/listen", "internal/engineclient",
				"internal/workload", "internal/process", "internal/display", "internal/atomicfile",
			},
			"each depends on no other",
		},
	},
	{
		{[]string{"test/apiserver", "test/network", "test/stores"}, "an API server is two processes; servers of storage are built, too"},
		{[]string{"test/realenvoy"}, "an Envoy is a process"},
		{[]string{
			"test/ci", "test/docs", "test/surface", "test/golden", "test/leak", "test/mutate", "test/pipenet", "test/protos", "test/race",
			"test/times", "test/walls", "test/fakehub", "test/venv", "test/gobuild",
		}, "each depends on no other"},
	},
	{
		{
			[]string{"api/wire", "api/admin", "api/pool", "api/v1alpha1", "api/placement", "api/mmesh", "api/inference", "api/relayed", "api/tensorflow"},
			"each is one protocol, or one group of objects",
		},
	},
	{
		{[]string{"manifests"}, "manifests and their tests"},
	},
	{
		{[]string{"."}, "envoy.yaml, embedded in the programs"},
	},
}

// guests are the packages of another program that tests of a package may import.
var guests = []struct {
	tests string   // package whose tests import the rooms
	rooms []string // packages of another program
	why   string
}{
	{"control/command", []string{"extproc/command"}, "a test runs both programs in one process"},
	{
		"control/place",
		[]string{"headgate/simulated/llm", "headgate/simulated/runtime", "headgate/simulated/repository"},
		"placement is tested with simulated engines",
	},
	{
		"control/place/loader",
		[]string{"headgate/simulated/llm", "headgate/simulated/runtime", "headgate/simulated/repository"},
		"drivers are tested with simulated engines",
	},
	{
		"control/agent/manage",
		[]string{"headgate/simulated/runtime", "headgate/simulated/repository"},
		"management is tested with simulated engines",
	},
	{"control/agent/adapters", []string{"headgate/simulated/llm"}, "calls to engines are tested with simulated ones"},
	{"control/agent/command", []string{"headgate/simulated/repository"}, "the agent is tested beside a simulated engine"},
	{"control/profile", []string{"headgate/simulated/llm"}, "measurements are tested with a simulated engine, whose times are known"},
	{"control/attach/envoy", []string{"headgate/envoy/find"}, "configuration is tested with a real Envoy"},
	{"control/attach/ads", []string{"headgate/envoy/find"}, "configuration is tested with a real Envoy"},
	{"control/attach/controller", []string{"headgate/envoy/find"}, "configuration is tested with a real Envoy"},
	{"control/attach/certificates", []string{"headgate/envoy/find"}, "configuration is tested with a real Envoy"},
	{
		"control/provision/estimate",
		[]string{"bench/fleet", "headgate/simulated/llm"},
		"simulated engines are compared with those of bench fleet",
	},
	{"control/provision/planner", []string{"bench/provision"}, "plans are tested with the pipelines of bench provision"},
	{"extproc/eds", []string{"headgate/envoy/find", "headgate/envoy/adapt"}, "endpoints are tested with a real Envoy"},
	{
		"extproc/placementclient",
		[]string{"control/place/placementserver"},
		"what extprocs exchange is tested through the real placement server",
	},
	{
		"bench/ext",
		[]string{"extproc/stream", "extproc/fleet", "extproc/metrics", "extproc/accesslog", "extproc/codec", "extproc/outcome"},
		"its client is tested with extproc's own server",
	},
	{"extproc/limits", []string{"control/place/lending"}, "limits of several processes are tested with what divides them"},
}

// namesakes are packages that may have the same name, and why that does not confuse readers.
var namesakes = []struct {
	name  string
	rooms []string
	why   string
}{
	{"command", []string{"control/command", "extproc/command", "control/agent/command"}, "each runs its program; no file imports both"},
	{"serve", []string{"control/serve", "extproc/serve"}, "each has its program's listeners; no file imports both"},
	{"metrics", []string{"control/metrics", "extproc/metrics"}, "each has its program's metrics; no file imports both"},
	{"place", []string{"bench/place", "control/place"}, "one judges what the other decides; no file imports both"},
	{"profile", []string{"control/profile", "internal/profile"}, "one is the command that measures a profile, the other the type"},
	{
		"plan",
		[]string{"control/attach/plan", "control/provision/plan"},
		"one plans Envoy's configuration, the other is the command that plans pods; no file imports both",
	},
	{"fleet", []string{"bench/fleet", "extproc/fleet"}, "one simulates endpoints, the other has their state"},
	{"flow", []string{"bench/flow", "extproc/flow"}, "one judges what the other decides; no file imports both"},
	{
		"envoy",
		[]string{"bench/envoy", "control/attach/envoy", "headgate/envoy"},
		"two run Envoys, for tests and for good; the other makes their configuration",
	},
	{"drain", []string{"extproc/drain", "headgate/drain"}, "one waits for an Envoy, the other for models; no file imports both"},
	{"e2e", []string{"bench/cluster/e2e", "bench/e2e"}, "they have only tests"},
	{
		"relay",
		[]string{"control/agent/relay", "extproc/relay"},
		"one passes connections to the engine beside it, the other requests to engines elsewhere; no file imports both",
	},
}

// otherNames are commands of headgate whose package has another name: internal/engine has theirs.
var otherNames = map[string]string{"engine": "simulated"}

// emptyNames are package names that do not say what a package contains.
var emptyNames = []string{"util", "utils", "common", "base", "types", "helpers", "manager", "misc", "pkg", "cmd"}
