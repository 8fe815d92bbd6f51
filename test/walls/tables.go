package main

// module is the path before every package of ours.
const module = "github.com/headgate/headgate/"

// programs are the folders that end in a program each, and how many lines their package main may have, tests apart: wiring
// and flags. What does I/O in one program is of no use to another.
var programs = []struct {
	folder string
	lines  int
}{
	{"extproc", 350},
	{"control", 655},
	{"bench", 650},
}

// mainLines is how many lines a program's main.go may have.
const mainLines = 150

// maxMethods is how many methods a type may have, those of embedded types included. A reader cannot keep more in mind, and each
// of them can change all fields of the type.
const maxMethods = 60

// crowded are the types that have more methods for now, and how many they may have.
var crowded = map[string]int{
	"bench/place.modelmesh":             63,
	"control/place.Placer":              75,
	"control/place/decide.State":        200,
	"extproc/fleet.Fleet":               89,
	"extproc/fleet/endpointstate.State": 75,
}

// pure are the rooms whose code is functions of its arguments: what they decide can be tested by giving and comparing,
// and simulated by any program. They, and those of our packages that they import, do no I/O, wait for nothing, lock
// nothing and have no state of their own.
var pure = []string{
	"extproc/openai", "extproc/kserve", "extproc/prefix", "extproc/route", "extproc/pick", "extproc/settings", "extproc/flow/queue", "extproc/fleet/endpointstate", "extproc/outcome",
	"extproc/decode", "extproc/relay/relaytoken", "extproc/transcode", "extproc/payload/sink",
	"control/place/decide", "control/attach/plan", "control/attach/services", "control/attach/conditions", "control/attach/envoy", "control/attach/order",
	"control/attach/bisect", "control/attach/memo", "control/pods/gateway", "control/provision/estimate", "control/provision/planner", "control/provision/problem",
	"control/provision/report", "control/profile/survey",
	"internal/attach", "internal/engine", "internal/des", "internal/objects", "internal/profile", "internal/profile/fit", "internal/profile/learn", "internal/profile/table",
	"internal/sim", "internal/workload",
}

// impureStd are the packages of the standard library that a pure room may not import, with what is let through.
var impureStd = []struct {
	path   string
	except []string
	why    string
}{
	{"net", []string{"net/netip", "net/url"}, "a pure room reaches no network"}, // types and parsing
	{"os", nil, "a pure room reads no files and no environment"},
	{"log", nil, "a pure room returns what it has to say"},
	{"context", nil, "a pure room waits for nothing"},
	{"sync", []string{"sync/atomic"}, "a pure room shares nothing but counters"},
	{"syscall", nil, "a pure room asks the system for nothing"},
	{"io/fs", nil, "a pure room reads no files"},
	{"crypto/rand", nil, "randomness is an argument"},
}

// pureModules are the packages of modules beyond the standard library that a pure room may import: types, and readers of bytes. With a
// slash at the end, everything below is meant.
var pureModules = []string{
	"github.com/tidwall/gjson",                      // reads JSON
	"github.com/cespare/xxhash/v2",                  // hashes bytes
	"sigs.k8s.io/yaml",                              // reads YAML
	"k8s.io/apimachinery/pkg/apis/meta/v1",          // types
	"k8s.io/apimachinery/pkg/api/resource",          // types
	"k8s.io/apimachinery/pkg/runtime",               // what deepcopy and a client's scheme are written in
	"k8s.io/apimachinery/pkg/runtime/schema",        // types
	"k8s.io/apimachinery/pkg/util/validation",       // checks names
	"k8s.io/apimachinery/pkg/util/validation/field", // names faults
	"k8s.io/apimachinery/pkg/labels",                // selects by labels
	"k8s.io/apimachinery/pkg/util/intstr",           // types
	"k8s.io/api/",                                   // types
	"k8s.io/utils/ptr",                              // what a pointer points to
	"sigs.k8s.io/gateway-api/apis/v1",               // types
	"sigs.k8s.io/gateway-api/pkg/features",          // names

	// Envoy's words, and how they are written.
	"github.com/envoyproxy/go-control-plane/envoy/config/", "github.com/envoyproxy/go-control-plane/envoy/extensions/",
	"github.com/envoyproxy/go-control-plane/envoy/type/", "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3",
	"google.golang.org/protobuf/proto", "google.golang.org/protobuf/encoding/protojson", "google.golang.org/protobuf/encoding/protowire", "google.golang.org/protobuf/types/known/",

	"github.com/klauspost/compress/zstd", "github.com/andybalholm/brotli", // decode bytes

	"gonum.org/v1/gonum/stat/distuv",               // draws, of a source that is given
	"github.com/hashicorp/golang-lru/v2/simplelru", // keeps what was used last

	"github.com/prometheus/client_model/go", // types
	"github.com/prometheus/common/expfmt",   // reads metrics pages
	"github.com/prometheus/common/model",    // types
}

// confined are libraries that only some rooms may import. With a slash at the end, everything below is meant.
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
		[]string{"internal/objects/kube", "control", "control/election", "control/pods", "control/statuswriter", "bench/cluster", "test/apiserver"},
	},
	{
		"sigs.k8s.io/controller-runtime/", "an object's source is known to one room",
		[]string{"internal/objects/kube", "control/statuswriter"},
	},
	{
		"k8s.io/api/", "other rooms know pods as objects.Pod; control has objects of its own in one place; people write resources in Kubernetes' words",
		[]string{"internal/objects/kinds", "internal/objects/kube", "control/pods", "control/pods/gateway", "api/v1alpha1", "test/apiserver"},
	},
}

// floor is some rooms of a house that know nothing of each other.
type floor struct {
	rooms []string
	why   string // they stand here
}

// trying is the program that may be made of what stands in test: it is what Headgate is tried with.
const trying = "bench"

// reserved are rooms of internal that one program reaches, or none, and why they stand there all the same.
var reserved = []struct{ room, why string }{
	{"internal/profile/fit", "what control fits from a file, pick may come to correct from what it sees"},
}

// houses are the programs and what they share, each with its floors from the top down. A room imports only rooms of its house
// that stand on floors below its own. Every package stands on one floor.
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
		{[]string{"control"}, "it puts the rooms together"},
		{
			[]string{"control/metrics", "control/serve", "control/election", "control/pods", "control/statuswriter", "control/status", "control/prestop", "control/provision/plan"},
			"each speaks with one neighbour: people, callers, and an API server about one matter each",
		},
		{[]string{"control/attach/controller"}, "objects become what Envoys are served"},
		{
			[]string{"control/attach/ads", "control/attach/show", "control/profile", "control/pods/gateway"},
			"the first speaks with Envoys, the next two with people, and the last says what Envoys run in",
		},
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
			[]string{"control/place/loader", "control/place/decide", "control/place/store", "control/broadcast", "control/attach/memo", "control/provision/planner", "control/profile/survey"},
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
		{[]string{"bench/traffic"}, "what requests are like, that simulated fleets are sent"},
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

// guests are the rooms of another program that a program's tests may import.
var guests = []struct {
	tests string   // of this room
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

// namesakes are packages that share their name with another, which has a reader look twice.
var namesakes = []struct {
	name  string
	rooms []string
	why   string
}{
	{"serve", []string{"control/serve", "extproc/serve"}, "each is where its program listens, and neither is seen beside the other"},
	{"metrics", []string{"control/metrics", "extproc/metrics"}, "each is what its program says of itself, and neither is seen beside the other"},
	{"place", []string{"bench/place", "control/place"}, "the one judges what the other decides, and neither is seen beside the other"},
	{"profile", []string{"control/profile", "internal/profile"}, "the one is the command that measures a profile, the other the type"},
	{"plan", []string{"control/attach/plan", "control/provision/plan"}, "the one says what Envoys do, the other is the command that plans pods; neither is seen beside the other"},
	{"fleet", []string{"bench/fleet", "extproc/fleet"}, "the one is endpoints that are simulated, the other what is believed of endpoints"},
	{"envoy", []string{"bench/envoy", "control/attach/envoy"}, "the one runs Envoys, the other says what they are given"},
	{"e2e", []string{"bench/cluster/e2e", "bench/e2e"}, "only tests, which nobody imports"},
}

// emptyNames are names of packages that say nothing of what is in them.
var emptyNames = []string{"util", "utils", "common", "base", "types", "helpers", "manager", "misc", "pkg", "cmd"}
