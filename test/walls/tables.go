package main

// module is the prefix of the import path of every package of this module.
const module = "github.com/headgate/headgate/"

// programs are the folders of the programs, and the largest number of lines of their package main,
// tests excluded.
var programs = []struct {
	folder string
	lines  int
}{
	{"extproc", 350},
	{"control", 350},
	{"bench", 650},
}

// mainLines is the largest number of lines of a program's main.go.
const mainLines = 150

// maxMethods is the largest number of methods of a type, including those of embedded types. Each
// method can change all fields, and a reader cannot keep more in mind.
const maxMethods = 60

// crowded are the types that have more methods than maxMethods for now, and the number they may
// have.
var crowded = map[string]int{
	"bench/place.modelmesh": 63,
	"control/place.Placer":  75,
}

// pure are the packages whose functions depend on their arguments alone. Tests and simulations can
// call them without a network, a clock or goroutines. They, and the packages of this module that
// they import, do no I/O, do not wait, take no locks and have no state of their own.
var pure = []string{
	"extproc/openai", "extproc/kserve", "extproc/prefix", "extproc/route", "extproc/pick", "extproc/settings", "extproc/flow/queue", "extproc/fleet/endpointstate", "extproc/outcome",
	"extproc/decode", "extproc/relay/relaytoken", "extproc/transcode", "extproc/payload/sink",
	"control/place/decide", "control/attach/plan", "control/attach/services", "control/attach/conditions", "control/attach/envoy", "control/attach/order",
	"control/attach/bisect", "control/attach/cache", "control/pods/gateway", "control/provision/estimate", "control/provision/planner", "control/provision/problem",
	"control/provision/report", "control/profile/survey",
	"internal/attach", "internal/engine", "internal/des", "internal/objects", "internal/profile", "internal/profile/fit", "internal/profile/learn", "internal/profile/table",
	"internal/sim", "internal/workload",
}

// impureStd are the packages of the standard library that a pure package may not import, and the
// exceptions below them.
var impureStd = []struct {
	path   string
	except []string
	why    string
}{
	{"net", []string{"net/netip", "net/url"}, "a pure room reaches no network"}, // types and parsers
	{"os", nil, "a pure room reads no files and no environment"},
	{"log", nil, "a pure room returns what it has to say"},
	{"context", nil, "a pure room waits for nothing"},
	{"sync", []string{"sync/atomic"}, "a pure room shares nothing but counters"},
	{"syscall", nil, "a pure room asks the system for nothing"},
	{"io/fs", nil, "a pure room reads no files"},
	{"crypto/rand", nil, "randomness is an argument"},
}

// pureModules are the packages of other modules that a pure package may import: types and parsers.
// A slash at the end includes all packages below.
var pureModules = []string{
	"github.com/tidwall/gjson",                      // reads JSON
	"github.com/cespare/xxhash/v2",                  // hashes bytes
	"sigs.k8s.io/yaml",                              // reads YAML
	"k8s.io/apimachinery/pkg/apis/meta/v1",          // types
	"k8s.io/apimachinery/pkg/api/resource",          // types
	"k8s.io/apimachinery/pkg/runtime",               // deepcopy and the scheme of clients
	"k8s.io/apimachinery/pkg/runtime/schema",        // types
	"k8s.io/apimachinery/pkg/util/validation",       // validates names
	"k8s.io/apimachinery/pkg/util/validation/field", // errors of fields
	"k8s.io/apimachinery/pkg/labels",                // selects by labels
	"k8s.io/apimachinery/pkg/util/intstr",           // types
	"k8s.io/api/",                                   // types
	"k8s.io/utils/ptr",                              // pointers to values
	"sigs.k8s.io/gateway-api/apis/v1",               // types
	"sigs.k8s.io/gateway-api/pkg/features",          // names of features

	// Envoy's messages, and how they are encoded.
	"github.com/envoyproxy/go-control-plane/envoy/config/", "github.com/envoyproxy/go-control-plane/envoy/extensions/",
	"github.com/envoyproxy/go-control-plane/envoy/type/", "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3",
	"google.golang.org/protobuf/proto", "google.golang.org/protobuf/encoding/protojson", "google.golang.org/protobuf/encoding/protowire", "google.golang.org/protobuf/types/known/",

	"github.com/klauspost/compress/zstd", "github.com/andybalholm/brotli", // decompress

	"gonum.org/v1/gonum/stat/distuv",               // distributions over a given random source
	"github.com/hashicorp/golang-lru/v2/simplelru", // an LRU cache

	"github.com/prometheus/client_model/go", // types
	"github.com/prometheus/common/expfmt",   // parses metrics pages
	"github.com/prometheus/common/model",    // types
}

// confined are libraries that only some packages may import. A slash at the end includes all
// packages below.
var confined = []struct {
	library, why string
	rooms        []string
}{
	{
		"google.golang.org/grpc/", "the wire is spoken at the edge",
		[]string{
			"extproc/serve", "extproc/stream", "extproc/accesslog", "extproc/placementclient", "extproc/payload",
			"control/serve", "control/attach/ads", "control/place/loader", "control/place/placementserver", "control/place/modelmesh",
			"api/", "bench/",
		},
	},
	{
		"github.com/envoyproxy/go-control-plane/", "Envoy's words stay where Envoy is spoken to",
		[]string{"extproc/serve", "extproc/stream", "extproc/accesslog", "extproc/eds", "extproc/payload", "control/attach/envoy", "control/attach/order", "control/attach/ads"},
	},
	{
		"k8s.io/client-go/", "an object's source is known to one room",
		[]string{"internal/objects/kube", "control/lifecycle", "control/election", "control/pods", "control/statuswriter", "bench/cluster", "test/apiserver"},
	},
	{
		"sigs.k8s.io/controller-runtime/", "an object's source is known to one room",
		[]string{"internal/objects/kube", "control/lifecycle", "control/statuswriter"},
	},
	{
		"k8s.io/api/", "other rooms know pods as objects.Pod; control has objects of its own in one place; people write resources in Kubernetes' words",
		[]string{"internal/objects/kinds", "internal/objects/kube", "control/pods", "control/pods/gateway", "api/v1alpha1", "test/apiserver"},
	},
}

// floor is a set of packages of a house that do not import each other.
type floor struct {
	rooms []string
	why   string // they are on this floor
}

// trying is the program that may import packages below test, because it is what Headgate is tested
// with.
const trying = "bench"

// reserved are packages under internal that only one program imports, or none, and the reason why
// they stay there.
var reserved = []struct{ room, why string }{
	{"internal/profile/fit", "what control fits from a file, pick may come to correct from what it sees"},
}

// houses are the programs and the shared folders, each with its floors from the top down. A package
// imports only packages of its house that are on lower floors. Every package is on exactly one
// floor.
var houses = [][]floor{
	{
		{[]string{"extproc"}, "main calls the command"},
		{[]string{"extproc/command"}, "the command connects the packages"},
		{[]string{"extproc/options"}, "flags set what every package below needs"},
		{[]string{"extproc/serve"}, "where it listens for those that it speaks with"},
		{
			[]string{"extproc/stream", "extproc/accesslog", "extproc/placementclient", "extproc/scrape", "extproc/eds", "extproc/relay", "extproc/payload"},
			"each speaks with one neighbour: Envoy, control, engines, sinks",
		},
		{[]string{"extproc/flow", "extproc/metrics"}, "requests wait for the fleet, and all that happens is counted"},
		{[]string{"extproc/fleet"}, "what happens becomes what is believed of endpoints, for the core"},
		{[]string{"extproc/fleet/endpointstate"}, "what is believed, in the core's words"},
		{
			[]string{"extproc/settings", "extproc/relay/relaytoken", "extproc/transcode"},
			"what people set says how the core picks; what was admitted stays so; what a request of V2 asks is asked otherwise",
		},
		{[]string{"extproc/payload/sink"}, "copies are made of what the core can read"},
		{
			[]string{"extproc/openai", "extproc/kserve", "extproc/route", "extproc/flow/queue", "extproc/pick", "extproc/outcome", "extproc/sidecar", "extproc/eppflags", "extproc/decode"},
			"the core, and others that know only their own matter; what became of requests is told in outcome's words",
		},
		{[]string{"extproc/prefix"}, "prompts are hashed as openai reads them"},
	},
	{
		{[]string{"control"}, "main calls the command"},
		{[]string{"control/command"}, "the command connects the packages"},
		{[]string{"control/lifecycle"}, "a control runs from its start to its end, alone or in a cluster"},
		{
			[]string{"control/metrics", "control/serve", "control/election", "control/pods", "control/statuswriter", "control/status", "control/prestop", "control/provision/plan"},
			"each speaks with one neighbour: people, callers, and an API server about one matter each",
		},
		{[]string{"control/attach/controller"}, "objects become what Envoys are served"},
		{
			[]string{"control/attach/ads", "control/attach/explain", "control/attach/bootstrap", "control/profile", "control/pods/gateway"},
			"the first serves Envoys, the next three are commands, and the last is what Envoys run in",
		},
		{[]string{"control/attach/routes"}, "a command that reads plans, as explain does"},
		{
			[]string{"control/attach/envoy", "control/attach/services", "control/attach/certificates", "control/attach/conditions", "control/attach/bisect"},
			"plans in Envoy's words, the endpoints of what they name, what plans are made of beside objects, what they say of objects, and what Envoys refuse of them",
		},
		{
			[]string{
				"control/place", "control/place/placementserver", "control/place/modelmesh", "control/attach/plan", "control/attach/order", "control/attach/pki", "control/profile/probe",
				"control/provision/problem", "control/provision/report",
			},
			"what Envoys are to do, and what is sent to one next; how long servers take; what is to be planned, and what a plan is in words; each of the others speaks with one neighbour, which is engines, extprocs or clients, in the words of decide",
		},
		{
			[]string{"control/place/loader", "control/place/decide", "control/place/store", "control/broadcast", "control/attach/cache", "control/provision/planner", "control/profile/survey"},
			"how engines are driven, what they are to be told, and what of it is remembered; who follows what, and what was made of what; what pods there are to be; what is to be measured",
		},
		{[]string{"control/provision/estimate"}, "how long queries would take"},
	},
	{
		{[]string{"bench", "bench/e2e", "bench/cluster/e2e", "bench/cluster/pause"}, "programs, and tests of whole programs"},
		{[]string{"bench/conformance"}, "the tests of others, on the cluster"},
		{
			[]string{"bench/quickstart", "bench/cluster", "bench/simulated/runtime", "bench/simulated/repository", "bench/fleet", "bench/place", "bench/provision"},
			"what people start; a simulated model runtime is a simulated engine behind another interface, and so is one with a model repository",
		},
		{[]string{"bench/rig", "bench/image"}, "how programs are run: as processes, and in images"},
		{[]string{"bench/simulated/llm", "bench/envoy"}, "what is run beside extproc and control"},
		{[]string{"bench/traffic", "bench/chart"}, "what requests are like, that simulated fleets are sent, and charts"},
	},
	{
		{[]string{"internal/objects/source", "internal/configdump"}, "it chooses where objects come from; what is in force is told to people"},
		{
			[]string{"internal/objects/dir", "internal/objects/kube", "internal/objects/resolve"},
			"each reads objects from one place",
		},
		{[]string{"internal/attach"}, "who attaches where, of the World"},
		{[]string{"internal/objects/kinds"}, "which kinds there are, for a folder and an API server both"},
		{[]string{"internal/objects", "internal/sim"}, "the World, the model of an engine"},
		{[]string{"internal/profile/table"}, "profiles of what nobody measured"},
		{[]string{"internal/profile/fit", "internal/profile/learn"}, "what a profile is made of, and kept true by what engines tell"},
		{
			[]string{"internal/engine", "internal/des", "internal/profile", "internal/listen", "internal/engineclient", "internal/workload", "internal/version"},
			"each knows only its own matter",
		},
	},
	{
		{[]string{"test/apiserver", "test/network"}, "an API server is two processes"},
		{[]string{"test/ci", "test/docs", "test/process", "test/golden", "test/leak", "test/pipenet", "test/protos", "test/race", "test/times", "test/walls"}, "each knows only its own matter"},
	},
	{
		{[]string{"api/wire", "api/pool", "api/v1alpha1", "api/placement", "api/mmesh", "api/inference", "api/relayed", "api/tensorflow"}, "each is one protocol, or one group of objects"},
	},
	{
		{[]string{"manifests"}, "what people apply, and its tests"},
	},
	{
		{[]string{"."}, "envoy.yaml, for programs that are built with it"},
	},
}

// guests are packages of another program that the tests of a package may import.
var guests = []struct {
	tests string   // of this package
	rooms []string // of another program
	why   string
}{
	{"control/place", []string{"bench/simulated/llm", "bench/simulated/runtime", "bench/simulated/repository"}, "what puts models onto engines is tried on simulated ones"},
	{"control/place/loader", []string{"bench/simulated/llm", "bench/simulated/runtime", "bench/simulated/repository"}, "what drives engines is tried on simulated ones"},
	{"control/profile", []string{"bench/simulated/llm"}, "what measures engines is tried on a simulated one, whose times are known"},
	{"control/attach/envoy", []string{"bench/envoy"}, "what Envoys are given is tried on a real one"},
	{"control/attach/ads", []string{"bench/envoy"}, "what Envoys are given is tried on a real one"},
	{"control/attach/controller", []string{"bench/envoy"}, "what Envoys are given is tried on a real one"},
	{"control/attach/certificates", []string{"bench/envoy"}, "what Envoys are given is tried on a real one"},
	{"control/provision/estimate", []string{"bench/fleet", "bench/simulated/llm"}, "engines are held beside those of the fleet that judges policies"},
	{"control/provision/planner", []string{"bench/provision"}, "plans are tried on the pipelines by which bench judges them"},
	{"extproc/eds", []string{"bench/envoy"}, "what an Envoy is told is tried on a real one"},
	{"extproc/placementclient", []string{"control/place/placementserver"}, "what extprocs tell each other is tried by way of control's own board"},
}

// namesakes are packages that may share a name, and why that confuses nobody.
var namesakes = []struct {
	name  string
	rooms []string
	why   string
}{
	{"command", []string{"control/command", "extproc/command"}, "each runs its program, and neither is seen beside the other"},
	{"serve", []string{"control/serve", "extproc/serve"}, "each is where its program listens, and neither is seen beside the other"},
	{"metrics", []string{"control/metrics", "extproc/metrics"}, "each is what its program says of itself, and neither is seen beside the other"},
	{"place", []string{"bench/place", "control/place"}, "the one judges what the other decides, and neither is seen beside the other"},
	{"profile", []string{"control/profile", "internal/profile"}, "the one is the command that measures a profile, the other the type"},
	{"plan", []string{"control/attach/plan", "control/provision/plan"}, "the one says what Envoys do, the other is the command that plans pods; neither is seen beside the other"},
	{"fleet", []string{"bench/fleet", "extproc/fleet"}, "the one is endpoints that are simulated, the other what is believed of endpoints"},
	{"envoy", []string{"bench/envoy", "control/attach/envoy"}, "the one runs Envoys, the other says what they are given"},
	{"e2e", []string{"bench/cluster/e2e", "bench/e2e"}, "only tests, which nobody imports"},
}

// emptyNames are package names that do not say what a package contains.
var emptyNames = []string{"util", "utils", "common", "base", "types", "helpers", "manager", "misc", "pkg", "cmd"}
