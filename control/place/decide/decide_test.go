package decide_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/golden"
)

// TestScenarios runs each scenario file with a new State. A line is a fact or a command; at the end
// of each block of lines, the State decides. The output is the actions, the changed failures, and
// the time of the next call of Decide.
//
//	endpoint e1 slots=4                     a scrape; lists=a,b bytes=1Gi default=50Mi loads=6
//	                                        overlap=8 first=30s predict timeout=90s incarnation=x
//	                                        gpu=2 host=4
//	endpoint e1 bytes=1Gi index             its engine lists models; their total size is limited
//	declare e1                              the endpoint is known, but not scraped yet
//	terminating e1, staying e1 x            its pod is being deleted, or not, reported by x
//	terminating e1 migrates=1m              its pod is being deleted and migrates for a minute
//	pod e1 unready trial outgoing           the state of its pod; without words: it serves
//	trial e1                                prints the progress of its trial
//	migration e1                            prints the progress of its migration
//	stopping e1 before=1s                   its engine reported that it is stopping, 1s ago
//	look e1 a b                             a scrape that lists a and b; before=1s: the scrape
//	                                        began 1s ago; passing=c: c is loading or unloading
//	doubt e1                                a scrape that cannot tell whether the engine restarted
//	purge e1                                a scrape that unloaded all models of the engine
//	model a min=1 max=2 pinned size=50Mi used=5m base=llama
//	want x a unusable=e1                    requests at the extproc x wait for a and cannot use a
//	                                        copy at e1; wait x a: the same, not counted as a use
//	loaded e1 a size=60Mi took=2s
//	measured e1 a size=60Mi                 the engine reports the size of a
//	failed e1 a why=rank_too_large out of memory
//	failing e1 a why=load_retried no answer the load has failed, and a is being unloaded
//	leftover e1 a                           the load failed; the engine may keep a part of a
//	used a requests=30                      30 requests named a; without a number: unknown
//	pool lru rpm=600 timeout=5m expiry=1m   settings of the pool; defaults if not given
//	fits type=sklearn only=e1,e2 prefer=e1  the endpoints for models of this type; without type:
//	                                        for all other types; without words: no restriction
//	vmodel v target=b canary=c percent=10 was=a previous=b kept=5m force
//	unvmodel v
//	tick
//	pause, resume                           no action begins between these lines
//	show                                    prints all models with their copies
//	records                                 prints the copies that their engines no longer have
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return newRunner(t).block
	})
}

var (
	start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	pool  = objects.Name{Namespace: "default", Name: "p"}
)

// inOrder breaks ties between equal endpoints by address.
var inOrder = decide.Config{TieBreak: func(_, _ uint64) uint64 { return 0 }}

type runner struct {
	t      *testing.T
	s      *decide.State
	now    time.Time
	sights map[string]decide.ScrapeResult
	told   map[decide.Key]decide.Switch
	fits   decide.Fits
	paused bool
	out    strings.Builder
	// followers receive all changes. After each decision they must agree with the State.
	followers *decide.Followers
}

func newRunner(t *testing.T) *runner {
	return &runner{
		t: t, s: decide.New(inOrder), now: start, sights: map[string]decide.ScrapeResult{}, told: map[decide.Key]decide.Switch{},
		followers: decide.NewFollowers(),
	}
}

func (r *runner) block(input string) string {
	r.out.Reset()
	var todo []decide.Action
	var asked []string
	shown, records := false, false
	for line := range strings.SplitSeq(input, "\n") {
		words := strings.Fields(line)
		if words[0] == "migration" || words[0] == "trial" {
			asked = append(asked, line)
			continue
		}
		if words[0] == "show" {
			shown = true
			continue
		}
		if words[0] == "records" {
			records = true
			continue
		}
		todo = append(todo, r.tell(words[0], words[1:])...)
	}
	more, wake := r.s.Decide(r.now)
	r.print(append(todo, more...))
	changes := r.s.Changes()
	if err := errors.Join(r.s.Audit(!r.paused), r.followers.Check(r.s, changes)); err != nil {
		fmt.Fprintln(&r.out, err)
	}
	if slices.SortFunc(changes.Gone, decide.CopyKey.Compare); records {
		for _, key := range changes.Gone {
			fmt.Fprintf(&r.out, "nothing is left of %s at %s\n", key.ID, key.Endpoint)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(changes.Failures), decide.Key.Compare) {
		if why := changes.Failures[key]; why != "" {
			fmt.Fprintf(&r.out, "%s cannot be loaded: %s\n", key.ID, why)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(changes.VModels), decide.Key.Compare) {
		r.showSwitch(key, changes.VModels[key])
	}
	for _, line := range asked {
		if address, ok := strings.CutPrefix(line, "migration "); ok {
			r.showMigration(address)
		} else {
			r.showTrial(strings.Fields(line)[1])
		}
	}
	if shown {
		r.out.WriteString(r.s.String())
		if !wake.IsZero() {
			fmt.Fprintf(&r.out, "asked again in %v\n", wake.Sub(r.now))
		}
	}
	return r.out.String()
}

func (r *runner) print(todo []decide.Action) {
	for _, a := range todo {
		if a.Kind == decide.Quit {
			fmt.Fprintf(&r.out, "quit %s\n", a.Endpoint)
			continue
		}
		fmt.Fprintf(&r.out, "%s %s at %s", a.Kind, a.Model.ID, a.Endpoint)
		if a.For == decide.ForMigration {
			r.out.WriteString(" for migration")
		}
		if a.Timeout > 0 {
			fmt.Fprintf(&r.out, " within %v", a.Timeout.Round(time.Millisecond))
		}
		if a.Stalled > 0 {
			fmt.Fprintf(&r.out, " after %v in the queue", a.Stalled)
		}
		r.out.WriteString("\n")
	}
}

// showSwitch prints the target of a VModel if it has changed.
func (r *runner) showSwitch(key decide.Key, is decide.Switch) {
	if r.told[key] == is {
		return
	}
	r.told[key] = is
	switch {
	case is == decide.Switch{}:
		fmt.Fprintf(&r.out, "requests for %s go nowhere\n", key.ID)
	case is.Canary != "":
		fmt.Fprintf(&r.out, "requests for %s go to %s, %d %% of them to %s\n", key.ID, is.Active, is.Percent, is.Canary)
	default:
		fmt.Fprintf(&r.out, "requests for %s go to %s\n", key.ID, is.Active)
	}
}

func (r *runner) showMigration(address string) {
	is, there := r.s.Migration(address)
	switch {
	case !there:
		fmt.Fprintf(&r.out, "%s does not migrate\n", address)
		return
	case is.Done:
		fmt.Fprintf(&r.out, "%s is done:", address)
	default:
		fmt.Fprintf(&r.out, "%s migrates:", address)
	}
	fmt.Fprintf(&r.out, " %d moved, %d on their way, %d idle", is.Moved, is.Moving, is.Idle)
	for _, u := range is.Unmoved {
		fmt.Fprintf(&r.out, "; %s has %d of %d [%s]", u.ID, u.Copies, u.Wanted, u.Why)
	}
	r.out.WriteString("\n")
}

func (r *runner) showTrial(address string) {
	is, there := r.s.Trial(address)
	switch {
	case !there:
		fmt.Fprintf(&r.out, "%s is not on trial\n", address)
		return
	case is.Passed:
		fmt.Fprintf(&r.out, "%s has passed with %d", address, is.Loaded)
	case is.Failed:
		fmt.Fprintf(&r.out, "%s has failed with %d", address, is.Loaded)
	default:
		fmt.Fprintf(&r.out, "%s is on trial", address)
	}
	for _, f := range is.Failures {
		fmt.Fprintf(&r.out, "; %s: %s", f.ID, f.Message)
	}
	r.out.WriteString("\n")
}

// options separates plain words from words of the form key=value.
func options(words []string) (plain []string, with map[string]string) {
	with = map[string]string{}
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok {
			with[k] = v
		} else {
			plain = append(plain, w)
		}
	}
	return plain, with
}

func key(id string) decide.Key { return decide.Key{Pool: pool, ID: id} }

func copyKey(endpoint, id string) decide.CopyKey {
	return decide.CopyKey{ModelKey: key(id), Endpoint: endpoint}
}

func (r *runner) tell(verb string, words []string) []decide.Action {
	plain, with := options(words)
	switch verb {
	case "after":
		r.now = r.now.Add(r.duration(plain[0]))
	case "declare":
		r.s.SetEndpoint(plain[0], []objects.Name{pool})
	case "terminating", "staying":
		var migrates time.Time
		if with["migrates"] != "" {
			migrates = r.now.Add(r.duration(with["migrates"]))
		}
		r.s.Terminating(strings.Join(plain[1:], ""), plain[0], verb == "terminating", migrates)
	case "stopping":
		r.s.Stopping(plain[0], r.now.Add(-r.duration(with["before"])), r.now)
	case "endpoint":
		r.s.SetEndpoint(plain[0], []objects.Name{pool})
		e := decide.Endpoint{
			Address: plain[0], CanLoad: !slices.Contains(plain, "static"), Lists: with["bytes"] == "" || slices.Contains(plain, "index"),
			CanPredict: slices.Contains(plain, "predict"),
			Bytes:      r.bytes(with["bytes"]), DefaultBytes: r.bytes(with["default"]), Slots: r.number(with["slots"]),
			Loads: r.number(with["loads"]), Overlap: r.number(with["overlap"]), FirstTimeout: r.duration(with["first"]),
			GPUAdapters: r.number(with["gpu"]), HostAdapters: r.number(with["host"]),
			LoadTimeout: r.duration(with["timeout"]), Incarnation: with["incarnation"],
		}
		if with["base"] != "" {
			e.BaseModels = []string{with["base"]}
		}
		r.sights[e.Address] = decide.ScrapeResult{Endpoint: e}
		var listed []string
		if with["lists"] != "" {
			listed = strings.Split(with["lists"], ",")
		}
		r.scrape(plain[0], listed, 0)
	case "look":
		if with["incarnation"] != "" {
			seen := r.sights[plain[0]]
			seen.Incarnation = with["incarnation"]
			r.sights[plain[0]] = seen
		}
		seen := r.sights[plain[0]]
		seen.InTransition = strings.Fields(with["passing"])
		r.sights[plain[0]] = seen
		r.scrape(plain[0], plain[1:], r.duration(with["before"]))
	case "purge":
		seen := r.sights[plain[0]]
		seen.Began, seen.Purged = r.now, true
		r.s.Scraped(seen, r.now)
	case "doubt":
		seen := r.sights[plain[0]]
		seen.Began, seen.Doubtful = r.now, true
		r.s.Scraped(seen, r.now)
	case "pod":
		r.s.SetPod(plain[0], decide.Pod{
			Unready: slices.Contains(plain, "unready"), OnTrial: slices.Contains(plain, "trial"),
			Outgoing: slices.Contains(plain, "outgoing"),
		})
	case "gone":
		r.s.RemoveEndpoint(plain[0])
	case "down":
		r.s.Down(plain[0])
	case "silent":
		r.s.Silent(plain[0])
	case "model":
		e := objects.Entry{
			ModelKey: key(plain[0]), Min: r.number(with["min"]), Max: r.number(with["max"]), Size: r.bytes(with["size"]),
			Pinned: slices.Contains(plain, "pinned"), BaseModel: with["base"], Type: with["type"], Source: with["source"],
		}
		var used time.Time
		if with["used"] != "" {
			used = r.now.Add(-r.duration(with["used"]))
		}
		r.s.SetModel(e.Complete(nil), used)
	case "remove":
		r.s.RemoveModel(key(plain[0]))
	case "want", "wait":
		w := decide.Want{Requests: 1, Since: r.now}
		if with["unusable"] != "" {
			w.Unusable = strings.Split(with["unusable"], ",")
		}
		for _, id := range plain[1:] {
			if verb == "want" {
				r.s.Used(key(id), decide.Use{Last: r.now})
			}
			r.s.Wanted(plain[0], key(id), w)
		}
	case "unwant":
		for _, id := range plain[1:] {
			r.s.Wanted(plain[0], key(id), decide.Want{})
		}
	case "pool":
		r.s.SetPool(pool, decide.Pool{
			LRU: slices.Contains(plain, "lru"), RPM: r.number(with["rpm"]),
			LoadTimeout: r.duration(with["timeout"]), FailureExpiry: r.duration(with["expiry"]),
		})
	case "fits":
		r.setFits(with)
	case "vmodel":
		was := decide.VModelProgress{Active: with["was"], Previous: with["previous"]}
		if with["kept"] != "" {
			was.Until = r.now.Add(r.duration(with["kept"]))
		}
		v := decide.VModel{Key: key(plain[0]), Target: with["target"], Canary: with["canary"], Percent: r.number(with["percent"])}
		r.s.SetVModel(v, was, slices.Contains(plain, "force"), r.now)
	case "unvmodel":
		r.s.RemoveVModel(key(plain[0]))
	case "tick":
		r.s.Tick()
	case "pause", "resume":
		r.paused = verb == "pause"
		r.s.Pause(r.paused)
	case "left":
		r.s.Unwanted(plain[0])
	case "used":
		for _, id := range plain {
			r.s.Used(key(id), decide.Use{Requests: r.number(with["requests"]), Last: r.now, Waited: r.duration(with["waited"])})
		}
	case "inflight":
		r.s.InFlight(copyKey(plain[0], plain[1]), r.number(plain[2]), r.now)
	case "predicted":
		r.s.Predicted(copyKey(plain[0], plain[1]), r.bytes(with["size"]))
	case "loaded":
		for _, id := range plain[1:] {
			r.s.LoadEnded(copyKey(plain[0], id), decide.LoadResult{
				Bytes: r.bytes(with["size"]), Limit: r.number(with["limit"]),
				Took: r.duration(with["took"]),
			}, r.now)
		}
	case "failed":
		r.s.LoadEnded(copyKey(plain[0], plain[1]),
			decide.LoadResult{Failed: true, Message: strings.Join(plain[2:], " "), Why: decide.Reason(with["why"])}, r.now)
	case "failing":
		r.s.LoadFailing(copyKey(plain[0], plain[1]), strings.Join(plain[2:], " "), decide.Reason(with["why"]), r.now)
	case "measured":
		r.s.Measured(copyKey(plain[0], plain[1]), r.bytes(with["size"]))
	case "ensure":
		r.s.Ensure(key(plain[0]))
	case "leftover":
		r.s.LoadEnded(copyKey(plain[0], plain[1]), decide.LoadResult{Failed: true, Left: true}, r.now)
	case "unreached":
		r.s.LoadEnded(copyKey(plain[0], plain[1]), decide.LoadResult{Failed: true, Unreached: true}, r.now)
	case "drained":
		return r.s.Drained(copyKey(plain[0], plain[1]), r.now)
	case "unloaded":
		r.s.UnloadEnded(copyKey(plain[0], plain[1]), slices.Contains(plain, "not"), r.now)
	case "missing":
		if r.s.Missing(copyKey(plain[0], plain[1]), r.now) {
			fmt.Fprintf(&r.out, "make %s ready anew\n", plain[0])
		}
	case "recall":
		r.s.RestoreFailure(key(plain[1]), decide.Failure{
			Endpoint: plain[0], At: r.now.Add(-r.duration(with["ago"])), Message: strings.Join(plain[2:], " "),
			Why: decide.Reason(with["why"]),
		}, r.now)
	case "restore":
		states := map[string]decide.CopyState{"loading": decide.Loading, "loaded": decide.Loaded, "unloading": decide.Unloading}
		r.s.Restore(decide.Record{
			CopyKey: copyKey(plain[0], plain[1]), State: states[plain[2]], Limit: r.number(with["limit"]),
			Incarnation: with["incarnation"],
		}, r.now)
	default:
		r.t.Fatalf("what is %q?", verb)
	}
	return nil
}

// setFits restricts models of one type to some endpoints. Without any option it removes all
// restrictions.
func (r *runner) setFits(with map[string]string) {
	set := func(addresses string) map[string]bool {
		if addresses == "" {
			return nil
		}
		all := make(map[string]bool)
		for address := range strings.SplitSeq(addresses, ",") {
			all[address] = true
		}
		return all
	}
	to := decide.Fits{}
	if len(with) > 0 {
		to.Types, to.Others = maps.Clone(r.fits.Types), r.fits.Others
		fit := &decide.Fit{Only: set(with["only"]), Preferred: set(with["prefer"])}
		if with["type"] == "" {
			to.Others = fit
		} else {
			if to.Types == nil {
				to.Types = make(map[string]*decide.Fit)
			}
			to.Types[with["type"]] = fit
		}
	}
	r.fits = to
	r.s.SetFits(pool, to)
}

func (r *runner) scrape(address string, listed []string, before time.Duration) {
	seen := r.sights[address]
	seen.Began, seen.Listed = r.now.Add(-before), listed
	r.s.Scraped(seen, r.now)
}

func (r *runner) number(text string) int {
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *runner) bytes(text string) int64 {
	if text == "" {
		return 0
	}
	q := resource.MustParse(text)
	return q.Value()
}

func (r *runner) duration(text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}
